package golden

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
)

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
		return &redirectError{fmt.Sprintf("it redirects to a %s address, and only https is followed", clip(printable(to.Scheme)))}
	case err == nil && address.Unmap().IsLinkLocalUnicast():
		return &redirectError{"it redirects to an address of the local machine or cloud, which is not followed"}
	case before >= maxRedirects:
		return &redirectError{fmt.Sprintf("stopped after %d redirects", maxRedirects)}
	}
	return nil
}

// notRedirected is the client without redirects: what is signed, or shows who we are, is for one server. Nil is the
// usual client of the AWS SDK.
func notRedirected(client aws.HTTPClient) aws.HTTPClient {
	if client == nil {
		client = awshttp.NewBuildableClient()
	}
	if buildable, ok := client.(*awshttp.BuildableClient); ok {
		client = buildable.WithTransportOptions(toldByProxy).Freeze()
	}
	known, ok := client.(*http.Client)
	if !ok {
		return client
	}
	own := *known
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}

// A proxyError is a proxy that opens no way to a server.
type proxyError struct{ status int }

func (e *proxyError) Error() string {
	return "the proxy answers HTTP status " + strconv.Itoa(e.status) + " " + http.StatusText(e.status)
}

// toldByProxy makes the transport tell a proxy that refuses from a server that does.
func toldByProxy(t *http.Transport) {
	t.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, answer *http.Response) error {
		if answer.StatusCode != http.StatusOK {
			return &proxyError{answer.StatusCode}
		}
		return nil
	}
}

// webClient is that of http.DefaultClient, but for what its proxy says.
var webClient = sync.OnceValue(func() *http.Client {
	own, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultClient
	}
	own = own.Clone()
	toldByProxy(own)
	return &http.Client{Transport: own}
})
