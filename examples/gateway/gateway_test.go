package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/vllm-vcr/conformance/servetest"
)

// The first two requests to the server fail with status 503, and the client does not see it.
func TestGatewayTriesAgain(t *testing.T) {
	server := servetest.Start(t, servetest.Options{Model: "my-model", Faults: "http-fail:2:503"})
	gateway := httptest.NewServer(New(server.URL))
	defer gateway.Close()

	answer, err := http.Post(gateway.URL+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model": "my-model", "messages": [{"role": "user", "content": "Hello"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), `"finish_reason":"stop"`) {
		t.Errorf("status %d, %v: %s", answer.StatusCode, err, body)
	}
}
