package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/retry"
	"github.com/vllm-vcr/conformance/internal/frontends/openai"
)

// serverPause is between two looks at a server that is not up: engines take a minute or many.
const serverPause = 200 * time.Millisecond

// Await waits until the server at URL is healthy: GET /health answers with a status 2xx, or with a 4xx of a server that has
// no such path. After patience it fails with what the server said last; an error is else the cause of the context's end.
func Await(ctx context.Context, url string, patience time.Duration) error {
	return await(ctx, url, patience, openai.NewTransport())
}

func await(ctx context.Context, url string, patience time.Duration, http client) error {
	defer http.CloseIdleConnections()
	late := errors.New("late")
	ctx, cancel := context.WithTimeoutCause(ctx, patience, late)
	defer cancel()
	var last error
	for {
		err := health(ctx, url, http)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if err := retry.Pause(ctx, serverPause); errors.Is(err, late) {
			return fmt.Errorf("the server at %s was not ready within %v: %w", url, patience, last)
		} else if err != nil {
			return err
		}
	}
}

// healthPatience is how long a server may take to say that it is healthy.
const healthPatience = 10 * time.Second

func health(ctx context.Context, url string, client client) error {
	ctx, cancel := context.WithTimeout(ctx, healthPatience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return err
	}
	response, err := client.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, openai.MaxQuote))
	if response.StatusCode/100 != 2 && response.StatusCode/100 != 4 {
		return fmt.Errorf("GET /health: status %d", response.StatusCode)
	}
	return nil
}
