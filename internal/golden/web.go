package golden

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// openHTTPS reads a web server, with the given headers.
func (s *Store) openHTTPS(where *url.URL, header http.Header) func(context.Context, Span) (*Body, error) {
	return func(ctx context.Context, part Span) (*Body, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), http.NoBody)
		if err != nil {
			return nil, err
		}
		maps.Copy(req.Header, header)
		// Without this the transport asks for gzip and undoes it, and then also undoes that of a
		// golden which is stored with a Content-Encoding.
		req.Header.Set("Accept-Encoding", "identity")
		if part.Offset > 0 {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-", part.Offset))
			req.Header.Set("If-Match", part.ETag)
		}
		resp, err := s.client(header).Do(req)
		if err != nil {
			return nil, err
		}
		b, err := webBody(resp, part)
		if err != nil {
			resp.Body.Close()
			return nil, err
		}
		return b, nil
	}
}

// webBody is what a web server answered to the question for a part.
func webBody(resp *http.Response, part Span) (*Body, error) {
	b := &Body{ReadCloser: resp.Body, Size: resp.ContentLength, ETag: resp.Header.Get("Etag")}
	if modified, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		b.Modified = modified
	}
	switch {
	case resp.StatusCode == http.StatusOK:
		return b, nil
	case resp.StatusCode == http.StatusPartialContent && part.Offset > 0:
		var err error
		b.Offset, b.Size, err = ParseContentRange(resp.Header.Get("Content-Range"))
		return b, err
	}
	return nil, &Refusal{Status: resp.StatusCode, RetryAfter: retry.After(resp.Header)}
}

// client is the one for requests with the given headers.
func (s *Store) client(header http.Header) *http.Client {
	client := s.HTTP
	if client == nil {
		client = DefaultHTTP()
	}
	return keepingToHTTPS(client, header)
}

// ParseContentRange reads "bytes 10-19/20", or "bytes 10-19/*", of which the size is -1.
func ParseContentRange(text string) (offset, size int64, err error) {
	span, total, ok := strings.Cut(strings.TrimPrefix(text, "bytes "), "/")
	first, _, okSpan := strings.Cut(span, "-")
	offset, err = strconv.ParseInt(first, 10, 64)
	if !ok || !okSpan || err != nil || offset < 0 {
		return 0, 0, fmt.Errorf("the server sent a range that it does not name: Content-Range %q", clip(safetext.Line(text)))
	}
	if size, err = strconv.ParseInt(total, 10, 64); err != nil || size < 0 {
		size = -1
	}
	return offset, size, nil
}

// A redirectError is a server that sends us where we do not go.
type redirectError struct{ text string }

func (e *redirectError) Error() string { return e.text }

// maxRedirects is what http.Client follows by itself.
const maxRedirects = 10

// keepingToHTTPS is a client that follows redirects to https alone, so that nobody on the way learns or changes where we
// go, and never to an address that belongs to a machine or its cloud. The headers do not come along to another host: the
// hub redirects to signed addresses of other servers, and http.Client would pass a token on to any name below the hub's.
func keepingToHTTPS(client *http.Client, header http.Header) *http.Client {
	own := *client
	own.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if err := mayFollow(req.URL, len(via)); err != nil {
			return err
		}
		if req.URL.Host != via[0].URL.Host {
			for name := range header {
				req.Header.Del(name)
			}
		}
		if client.CheckRedirect != nil {
			return client.CheckRedirect(req, via)
		}
		return nil
	}
	return &own
}

// mayFollow says why a redirect is not followed.
func mayFollow(to *url.URL, before int) error {
	address, err := netip.ParseAddr(to.Hostname())
	switch {
	case to.Scheme != "https":
		return &redirectError{fmt.Sprintf("it redirects to a %s address, and only https is followed", clip(safetext.Line(to.Scheme)))}
	case err == nil && address.Unmap().IsLinkLocalUnicast():
		return &redirectError{"it redirects to an address of the local machine or cloud, which is not followed"}
	case before >= maxRedirects:
		return &redirectError{fmt.Sprintf("stopped after %d redirects", maxRedirects)}
	}
	return nil
}

// A proxyError is a proxy that opens no way to a server.
type proxyError struct{ status int }

func (e *proxyError) Error() string {
	return "the proxy answers HTTP status " + strconv.Itoa(e.status) + " " + http.StatusText(e.status)
}

// ReportProxy makes the transport distinguish a proxy that refuses from a server that does.
func ReportProxy(t *http.Transport) {
	t.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
		if answer.StatusCode != http.StatusOK {
			return &proxyError{answer.StatusCode}
		}
		return nil
	}
}

// DefaultHTTP is http.DefaultClient, but for what its proxy says.
var DefaultHTTP = sync.OnceValue(func() *http.Client {
	own, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultClient
	}
	own = own.Clone()
	ReportProxy(own)
	return &http.Client{Transport: own}
})
