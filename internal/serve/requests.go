package serve

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/vllm-vcr/conformance/internal/base/jsonout"
	"github.com/vllm-vcr/conformance/internal/serve/edge"
	"github.com/vllm-vcr/conformance/player"
)

// RequestsPath is where [ServeRequests] answers.
const RequestsPath = "/admin/requests"

// maxAwait bounds how long a client may wait for requests.
const maxAwait = 10 * time.Minute

// ServeRequests answers with what engines got: GET has all as JSON, with ?ended=N once N of them have ended or after
// &timeout=5s (default 10s); DELETE forgets them.
func ServeRequests(log *player.RequestLog) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ended, timeout, err := 0, 10*time.Second, error(nil)
		if text := r.URL.Query().Get("ended"); text != "" {
			ended, err = strconv.Atoi(text)
		}
		if text := r.URL.Query().Get("timeout"); text != "" && err == nil {
			timeout, err = time.ParseDuration(text)
		}
		switch {
		case err != nil || ended < 0 || timeout < 0 || timeout > maxAwait:
			edge.Refuse(w, http.StatusBadRequest, RequestsPath+" takes ended, a number, and timeout, a time up to 10m such as 5s")
			return
		case r.Method == http.MethodDelete:
			log.Clear()
		case r.Method != http.MethodGet:
			w.Header().Set("Allow", "GET, DELETE")
			edge.Refuse(w, http.StatusMethodNotAllowed, RequestsPath+" takes GET and DELETE")
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		requests, err := log.Await(ctx, ended)
		line, encodeErr := jsonout.Line(map[string]any{"requests": requests, "complete": err == nil})
		if encodeErr != nil {
			edge.Refuse(w, http.StatusInternalServerError, encodeErr.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(line) // the client may be gone
	})
}
