package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/vllm-vcr/conformance/internal/base/retry"
)

const maxStderr = 4 << 10

// A remoteError is a program in a container that did not end well.
type remoteError struct {
	command []string
	how     string
	stderr  string
}

func (e *remoteError) Error() string {
	text := fmt.Sprintf("%s: %s", strings.Join(e.command, " "), e.how)
	if e.stderr != "" && !strings.Contains(e.how, e.stderr) {
		text += ": " + e.stderr
	}
	return text
}

// exec runs a program in a container and returns when it has ended. It speaks WebSocket, or SPDY to servers and proxies
// that do not. Errors of the context are its cause.
func (c *Client) exec(ctx context.Context, pod, container string, command []string, stdout io.Writer) error {
	query := url.Values{"container": {container}, "command": command, "stdout": {"true"}, "stderr": {"true"}}
	where, err := url.Parse(c.podURL(pod, "exec", query))
	if err != nil {
		return err
	}
	web, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, where.String())
	if err != nil {
		return err
	}
	stderr := &tailBuffer{keep: maxStderr}
	streams := remotecommand.StreamOptions{Stdout: stdout, Stderr: stderr}
	err = web.StreamWithContext(ctx, streams)
	if httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) {
		refused := err
		if err = c.execOverSPDY(ctx, where, streams); err != nil {
			err = tellingOf(refused, err)
		}
	}
	var code utilexec.CodeExitError
	said := clean(strings.TrimSpace(stderr.text()))
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &code):
		return &remoteError{command, fmt.Sprintf("exit code %d", code.Code), said}
	case err != nil && said != "": // not every runtime returns the exit code
		return &remoteError{command, clean(err.Error()), said}
	}
	return err
}

func (c *Client) execOverSPDY(ctx context.Context, where *url.URL, streams remotecommand.StreamOptions) error {
	spdy, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, where)
	if err != nil {
		return err
	}
	return spdy.StreamWithContext(ctx, streams)
}

// tellingOf prefers the refusal of the WebSocket to the error after it if the server itself refused: the latter has no
// code that one can look at.
func tellingOf(refused, after error) error {
	var upgrade *httpstream.UpgradeFailureError
	var status apierrors.APIStatus
	if errors.As(refused, &upgrade) && errors.As(upgrade.Cause, &status) {
		return upgrade.Cause
	}
	return after
}

// Release lets the container end, as its files were fetched. It may be called twice.
func (c *Client) Release(ctx context.Context, pod, container, dir string) error {
	command := []string{c.opt.Program, "capture", "pod", "release", "--dir", dir}
	for try := 1; ; try++ {
		limited, cancel := context.WithTimeoutCause(ctx, callTimeout, fmt.Errorf("no end in %v", callTimeout))
		err := c.exec(limited, pod, container, command, io.Discard)
		cancel()
		if err == nil {
			return nil
		}
		if try == retry.Tries || ctx.Err() != nil || !worthAnother(err) {
			return c.explain(fmt.Sprintf("release container %s of pod %s", container, pod), err)
		}
		if err := retry.Pause(ctx, c.backoff(try)); err != nil {
			return err
		}
	}
}

// worthAnother reports whether the same command may end better: not if the program refused, or may not be run.
func worthAnother(err error) bool {
	var remote *remoteError
	return !errors.As(err, &remote) && !apierrors.IsNotFound(err) && !apierrors.IsBadRequest(err) && passing(err)
}
