package golden

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

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

// client is the one for a request with the given headers, and what it is redirected to.
func (s *Store) client(header http.Header) *http.Client {
	client := s.HTTP
	if client == nil {
		client = DefaultHTTP()
	}
	s.guard.Do(func() { s.guarded = newGuards(client.Transport, s.inside) })
	return keepingToHTTPS(client, &hops{guards: s.guarded}, header)
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

// keepingToHTTPS is a client that follows redirects to https alone, so that no machine on the way learns or changes where we
// go, and to an address of the machine, its network or its cloud only as [hops] says. The headers do not come along to another
// host: the hub redirects to signed addresses of other servers, and http.Client would pass a token on to any name below the
// hub's.
func keepingToHTTPS(client *http.Client, hops *hops, header http.Header) *http.Client {
	own := *client
	own.Transport = hops
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
	switch {
	case to.Scheme != "https":
		return &redirectError{fmt.Sprintf("it redirects to a %s address, and only https is followed", clip(safetext.Line(to.Scheme)))}
	case before >= maxRedirects:
		return &redirectError{fmt.Sprintf("stopped after %d redirects", maxRedirects)}
	}
	return nil
}

// The guards are the ways to servers. Each redirect takes one whose connections were all checked when they were made, by the
// address that a name has then: a connection that another golden's own location has opened is not used again for it.
type guards struct {
	direct http.RoundTripper // of a golden's own location
	proxy  func(*http.Request) (*url.URL, error)
	public http.RoundTripper // no address inside
	within http.RoundTripper // also inside, for what is redirected from there, but for the cloud's
	inside func(netip.Addr) bool
}

func newGuards(direct http.RoundTripper, inside func(netip.Addr) bool) *guards {
	if direct == nil {
		direct = http.DefaultTransport
	}
	if inside == nil {
		inside = isInside
	}
	g := &guards{direct: direct, public: direct, within: direct, inside: inside}
	own, ok := direct.(*http.Transport)
	if !ok {
		return g // nothing in this program: names are not looked up here, so literal addresses are all that is checked
	}
	g.proxy = own.Proxy
	checked := func(wrong func(netip.Addr) bool) http.RoundTripper {
		t := own.Clone()
		t.Proxy = nil // see hops.RoundTrip
		dialer := net.Dialer{Timeout: 30 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err == nil && wrong(to.Addr().Unmap()) {
				return errInside(to.Addr())
			}
			return err
		}}
		t.DialContext, t.DialTLSContext = dialer.DialContext, nil
		return t
	}
	g.public, g.within = checked(inside), checked(isCloud)
	return g
}

func errInside(to netip.Addr) error {
	return &redirectError{fmt.Sprintf("it redirects to %s, an address of this machine, its network or its cloud, which is not followed", to)}
}

// hops are the requests for one golden: the first, and what it is redirected to. Who is at an address inside (of the machine,
// or of its network) may redirect to others there: such a location is the manifest's own choice.
type hops struct {
	*guards
	fromInside bool
}

func (h *hops) RoundTrip(req *http.Request) (*http.Response, error) {
	literal, notLiteral := netip.ParseAddr(req.URL.Hostname())
	literal = literal.Unmap()
	if req.Response == nil { // not by a redirect
		h.fromInside = notLiteral == nil && h.inside(literal)
		trace := &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
			if to, err := netip.ParseAddrPort(got.Conn.RemoteAddr().String()); err == nil && !h.proxied(req) {
				h.fromInside = h.inside(to.Addr().Unmap())
			}
		}}
		return h.direct.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), trace)))
	}
	if notLiteral == nil && (isCloud(literal) || h.inside(literal) && !h.fromInside) {
		return nil, errInside(literal)
	}
	switch {
	case h.proxied(req): // which looks the name up and connects, as its owner allows
		return h.direct.RoundTrip(req)
	case h.fromInside:
		return h.within.RoundTrip(req)
	}
	return h.public.RoundTrip(req)
}

// proxied reports whether a request goes by a proxy.
func (g *guards) proxied(req *http.Request) bool {
	if g.proxy == nil {
		return false
	}
	proxy, err := g.proxy(req)
	return err == nil && proxy != nil
}

// isCloud reports whether an address is of the link, where a cloud keeps the credentials of its machines.
func isCloud(a netip.Addr) bool {
	return a.IsLinkLocalUnicast() || a.IsLinkLocalMulticast() || slices.ContainsFunc(cloudPrefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// isInside reports whether an address is not one of the internet: of the machine, its network or its cloud.
func isInside(a netip.Addr) bool {
	return isCloud(a) || a.IsLoopback() || a.IsPrivate() || a.IsUnspecified() || a.IsMulticast() ||
		slices.ContainsFunc(insidePrefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

var (
	cloudPrefixes = []netip.Prefix{
		netip.MustParsePrefix("fd00:ec2::/32"),      // AWS, over IPv6
		netip.MustParsePrefix("fd20:ce::/32"),       // Google, over IPv6
		netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	}
	insidePrefixes = []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),     // this network: Linux connects to the machine itself
		netip.MustParsePrefix("100.64.0.0/10"), // shared by providers, and used by clouds within
		netip.MustParsePrefix("192.0.0.0/24"),  // protocol assignments
		netip.MustParsePrefix("198.18.0.0/15"), // benchmarks
		netip.MustParsePrefix("240.0.0.0/4"),   // reserved, and broadcast
		netip.MustParsePrefix("fec0::/10"),     // sites, as they were
		// These have an IPv4 address in them, which may be any of the above.
		netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"),
	}
)

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
