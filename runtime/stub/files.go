package stub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	uploadWithin   = 180 * time.Second
	downloadWithin = 120 * time.Second
	maxUploaded    = 1 << 20 // of the answer to an upload
	maxDownload    = 4 << 30
	toolFile       = "tool_file"
)

// Uploaded is what a file became.
type Uploaded struct {
	Reference string `json:"reference"`
	ID        string `json:"id"`
}

// Upload sends a file. name is what it is to be called; the content is streamed,
// with its length told where the file is a regular one.
func (c *Client) Upload(ctx context.Context, path, name string) (got Uploaded, err error) {
	f, size, err := openFile(path)
	if err != nil {
		return got, err
	}
	defer f.Close()
	kind := MIMEType(name)
	var to struct {
		URL string `json:"upload_url"`
	}
	if err := c.decode(ctx, "POST", "/files/upload-request?expose_expiration=true", map[string]string{"filename": name, "mimetype": kind}, &to); err != nil {
		return got, err
	}
	u, err := url.Parse(to.URL)
	if to.URL == "" {
		return got, errors.New("the Agent Stub's answer holds no upload_url")
	}
	if err != nil || checkURL(u) != nil {
		return got, errors.New("the Agent Stub's upload_url is no http or https URL")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, uploadWithin, fmt.Errorf("the upload took longer than %v", uploadWithin))
	defer cancel()
	answer, err := c.post(ctx, u, f, size, name, kind)
	if err != nil {
		return got, err
	}
	if err := json.Unmarshal(answer, &got); err != nil {
		return got, errors.New("the answer to the upload is not the JSON that was expected")
	}
	return got, nil
}

// openFile opens what can be uploaded; size is -1 when it is not known.
func openFile(path string) (*os.File, int64, error) {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.IsDir() {
		return nil, 0, fmt.Errorf("local file not found: %s", path)
	}
	if err != nil {
		return nil, 0, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	if st, err = f.Stat(); err == nil && st.Mode().IsRegular() {
		return f, st.Size(), nil
	}
	return f, -1, err
}

// post sends a multipart body with the file in the middle.
func (c *Client) post(ctx context.Context, u *url.URL, f io.Reader, size int64, name, kind string) ([]byte, error) {
	var around bytes.Buffer
	w := multipart.NewWriter(&around)
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\r", "%0D", "\n", "%0A")
	if _, err := w.CreatePart(textproto.MIMEHeader{
		"Content-Disposition": {`form-data; name="file"; filename="` + escape.Replace(name) + `"`}, "Content-Type": {kind}}); err != nil {
		return nil, fmt.Errorf("make the upload: %w", err)
	}
	head := around.Len()
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("make the upload: %w", err)
	}
	before, after := around.Bytes()[:head], around.Bytes()[head:]
	body := io.MultiReader(bytes.NewReader(before), f, bytes.NewReader(after))
	length := int64(-1)
	if size >= 0 { // what a file grows by meanwhile is not sent
		body = io.MultiReader(bytes.NewReader(before), io.LimitReader(f, size), bytes.NewReader(after))
		length = size + int64(around.Len())
	}
	r, err := http.NewRequestWithContext(ctx, "POST", u.String(), io.NopCloser(body))
	if err != nil {
		return nil, errors.New("the upload cannot be made")
	}
	r.ContentLength = length
	r.Header.Set("Content-Type", w.FormDataContentType())
	resp, err := c.data.Do(r)
	if err != nil {
		return nil, fmt.Errorf("upload: %w", plain(ctx, err))
	}
	defer resp.Body.Close()
	answer, err := readAll(resp.Body, maxUploaded)
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("upload failed with status %d: %s", resp.StatusCode, printable(string(answer)))
	}
	if err != nil {
		return nil, fmt.Errorf("read the answer to the upload: %w", plain(ctx, err))
	}
	return answer, nil
}

// UploadFile is Upload of a file for the user, whose answer holds a reference.
func (c *Client) UploadFile(ctx context.Context, path string) (reference string, err error) {
	got, err := c.Upload(ctx, path, filepath.Base(path))
	if err != nil {
		return "", err
	}
	if got.Reference == "" {
		return "", errors.New("the answer to the upload has a missing reference")
	}
	return got.Reference, CheckReference(got.Reference)
}

// offer is where a file can be had.
type offer struct {
	Filename string `json:"filename"`
	URL      string `json:"download_url"`
	Size     *int64 `json:"size"`
}

func (c *Client) request(ctx context.Context, body map[string]any) (o offer, u *url.URL, err error) {
	if err := c.decode(ctx, "POST", "/files/download-request", body, &o); err != nil {
		return o, nil, err
	}
	if o.URL == "" {
		return o, nil, errors.New("the Agent Stub's answer holds no download_url")
	}
	if u, err = url.Parse(o.URL); err != nil || checkURL(u) != nil {
		return o, nil, errors.New("the Agent Stub's download_url is no http or https URL")
	}
	return o, u, nil
}

// PublicURL gives a URL by which the user's browser can have the file.
func (c *Client) PublicURL(ctx context.Context, reference string) (string, error) {
	o, _, err := c.request(ctx, map[string]any{"file": map[string]string{"transfer_method": toolFile, "reference": reference}, "for_frontend": true})
	return o.URL, err
}

// DownloadFile puts a file into a directory, which is made, under a name that is
// not taken there, and gives the path.
func (c *Client) DownloadFile(ctx context.Context, method, what, dir string) (path string, err error) {
	file := map[string]string{"transfer_method": method}
	switch method {
	case "remote_url":
		file["url"] = what
	case "local_file", toolFile, "datasource_file":
		file["reference"] = what
	default:
		return "", fmt.Errorf("%q is no transfer method: use local_file, tool_file, datasource_file or remote_url", method)
	}
	o, u, err := c.request(ctx, map[string]any{"file": file, "for_frontend": false})
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer root.Close()
	name := SafeName(o.Filename)
	err = c.fetch(ctx, u, o, root, func(part string) error {
		for n := 0; ; n++ {
			// A link does not replace what has the name, whoever is quicker.
			err := root.Link(part, numbered(name, n))
			if errors.Is(err, fs.ErrExist) && n < 10_000 {
				continue
			}
			path = filepath.Join(dir, numbered(name, n))
			return err
		}
	})
	return path, err
}

// fetch downloads into a file of no lasting name in root, and hands it to done
// once it is whole; then the name goes.
func (c *Client) fetch(ctx context.Context, u *url.URL, o offer, root *os.Root, done func(part string) error) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, downloadWithin, fmt.Errorf("the download took longer than %v", downloadWithin))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", u.String(), nil)
	if err != nil {
		return errors.New("the download cannot be made")
	}
	resp, err := c.data.Do(r)
	if err != nil {
		return fmt.Errorf("download: %w", plain(ctx, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, maxShown))
		return fmt.Errorf("download failed with status %d: %s", resp.StatusCode, printable(string(b)))
	}
	f, part, err := createPart(root)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Remove(part)) }()
	n, err := io.Copy(f, io.LimitReader(resp.Body, maxDownload+1))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	switch {
	case err != nil:
		return fmt.Errorf("download: %w", plain(ctx, err))
	case n > maxDownload:
		return fmt.Errorf("the download is larger than %d bytes", int64(maxDownload))
	case o.Size != nil && *o.Size > 0 && n != *o.Size:
		return fmt.Errorf("the download has %d bytes, and was announced with %d", n, *o.Size)
	}
	return done(part)
}

// createPart makes a file that nobody else has.
func createPart(root *os.Root) (*os.File, string, error) {
	for n := 0; ; n++ {
		part := fmt.Sprintf(".dify-agent-%d-%d.part", os.Getpid(), time.Now().UnixNano())
		f, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) && n < 100 {
			continue
		}
		return f, part, err
	}
}
