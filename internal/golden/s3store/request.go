package s3store

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// An operation is a request to S3, apart from where the bucket is and who signs.
type operation struct {
	method, key string
	query       url.Values
	header      http.Header
	body        func() io.Reader // nil: none; called for each try
	size        int64            // of the body
	digest      string           // SHA-256 of the body, in hexadecimal
}

const (
	maxAnswer = 1 << 20 // bytes of an answer that is no object
	// expectFrom is the size of a body that is sent only once the server has seen the header and wants it.
	expectFrom = 2 << 20
)

// send makes a request once. An error is a [*refusal] if the server answered.
func (c *client) send(ctx context.Context, bucket, region string, used keys, op operation) (*http.Response, error) {
	where, err := c.where(bucket, region, op.key)
	if err != nil {
		return nil, err
	}
	where.RawQuery = op.query.Encode()
	var body io.Reader
	if op.body != nil && op.size > 0 {
		body = op.body()
	}
	r, err := http.NewRequestWithContext(ctx, op.method, where.String(), body)
	if err != nil {
		return nil, err
	}
	r.URL, r.ContentLength = where, op.size
	for name, values := range op.header {
		r.Header[name] = values
	}
	r.Header.Set("User-Agent", "vllm-vcr")
	if op.size >= expectFrom {
		r.Header.Set("Expect", "100-continue")
	}
	digest := op.digest
	if body == nil {
		digest = digestOf("")
	}
	if used.id != "" {
		if err := used.sign(r, "s3", region, digest, time.Now().Add(time.Duration(c.clock.Load()))); err != nil {
			return nil, err
		}
	}
	// Without it, package http would inflate an object. Proxies change it, so it is not signed.
	r.Header.Set("Accept-Encoding", "identity")
	answer, err := c.web.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode < http.StatusMultipleChoices {
		return answer, nil
	}
	defer answer.Body.Close()
	return nil, c.refused(answer, used, region)
}

// where is the URL of an object, or of the bucket if there is no key.
func (c *client) where(bucket, region, key string) (*url.URL, error) {
	base := c.endpoint
	if base == "" {
		base = "https://" + c.awsHost("s3", region)
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	path := strings.TrimSuffix(u.Path, "/")
	if c.pathStyle || !inHost(bucket, u) {
		path += "/" + bucket
	} else {
		u.Host = bucket + "." + u.Host
	}
	path += "/" + key
	u.Path, u.RawPath = path, escapePath(path)
	return u, nil
}

// inHost reports whether a bucket can be the first part of a host's name. With a dot in it, it has no certificate.
func inHost(bucket string, u *url.URL) bool {
	return net.ParseIP(u.Hostname()) == nil && bucketPattern().MatchString(bucket) && (u.Scheme == "http" || !strings.Contains(bucket, "."))
}

// said is what a server answers as XML, to a request for an object or for a role.
type said struct {
	XMLName xml.Name
	Code    string
	Message string
	Error   struct{ Code, Message string }
}

// readAnswer reads an answer that is no object.
func readAnswer(answer *http.Response) ([]byte, error) {
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	return text, err
}

func notRedirected(client *http.Client) *http.Client {
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &own
}

// xmlBody is a short body.
func (op *operation) xmlBody(value any) error {
	text, err := xml.Marshal(value)
	op.size, op.digest = int64(len(text)), digestOf(string(text))
	op.body = func() io.Reader { return bytes.NewReader(text) }
	return err
}
