package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

const (
	logLines   = 400
	maxLogRead = 16 << 20 // of as many lines
)

// Logs returns the last bytes, at most as many, that a container of a pod wrote, from the begin of a line.
func (c *Client) Logs(ctx context.Context, pod, container string, tailBytes int) (string, error) {
	return c.logs(ctx, pod, container, tailBytes, false)
}

// logs can also read those of the life before.
func (c *Client) logs(ctx context.Context, pod, container string, tailBytes int, previous bool) (string, error) {
	query := url.Values{"container": {container}, "tailLines": {strconv.Itoa(logLines)}}
	if previous {
		query.Set("previous", "true")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("no end in %v", callTimeout))
	defer cancel()
	tail, err := c.readLog(ctx, c.podURL(pod, "log", query), tailBytes)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return tail, c.explain(fmt.Sprintf("log of container %s of pod %s", container, pod), err)
}

func (c *Client) readLog(ctx context.Context, where string, tailBytes int) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return "", apierrors.NewGenericServerResponse(resp.StatusCode, "get",
			schema.GroupResource{Resource: "pods/log"}, "", clean(string(text)), 0, true)
	}
	tail := &tailBuffer{keep: tailBytes}
	_, err = io.Copy(tail, io.LimitReader(resp.Body, maxLogRead))
	return tail.text(), err
}

// podURL is the address of a part of a pod.
func (c *Client) podURL(pod, part string, query url.Values) string {
	base, _, err := rest.DefaultServerUrlFor(c.config)
	if err != nil { // Connect has made a client of it
		base = &url.URL{Scheme: "https", Host: c.host}
	}
	where := base.JoinPath("api", "v1", "namespaces", c.namespace, "pods", pod, part)
	where.RawQuery = query.Encode()
	return where.String()
}

// A tailBuffer keeps the last bytes that it is given. Who writes to it may not have noticed yet that it is read.
type tailBuffer struct {
	keep int

	mu   sync.Mutex
	kept []byte
	cut  bool
}

func (b *tailBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = append(b.kept, p...)
	if over := len(b.kept) - b.keep; over > 0 {
		b.kept, b.cut = append(b.kept[:0], b.kept[over:]...), true
	}
	return len(p), nil
}

// text begins with a line's begin, if there is one.
func (b *tailBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, rest, found := bytes.Cut(b.kept, []byte("\n")); b.cut && found && len(rest) > 0 {
		return string(rest)
	}
	return string(b.kept)
}
