package sanitize

import "time"

// QuietAfter is how long a terminal should be silent before its owner calls
// Quiet, so that a prompt is shown. Spinners and progress bars redraw faster.
// The clock is the owner's; nothing in this package looks at one.
const QuietAfter = 150 * time.Millisecond
