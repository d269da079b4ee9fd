package sanitize

import "time"

// QuietAfter is how long a terminal should be silent before its owner calls
// Quiet, so that a prompt is shown. Spinners and progress bars redraw faster.
// The clock is the owner's; nothing in this package looks at one.
const QuietAfter = 150 * time.Millisecond

// GrowingAfter is how long a line that is only added to should be held back at
// most, however busy the terminal is.
const GrowingAfter = time.Second
