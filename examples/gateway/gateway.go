// Package gateway is a gateway before servers of vLLM that tries a request again when the server is overloaded.
package gateway

import (
	"bytes"
	"io"
	"net/http"
)

// tries is how often a request is sent at most.
const tries = 3

// New returns a gateway before the server at a URL. It sends a request again after status 503.
func New(server string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var answer *http.Response
		for try := 1; ; try++ {
			request, err := http.NewRequestWithContext(r.Context(), r.Method, server+r.URL.Path, bytes.NewReader(body))
			if err == nil {
				request.Header = r.Header.Clone()
				answer, err = http.DefaultClient.Do(request)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusServiceUnavailable || try == tries {
				break
			}
		}
		for name, values := range answer.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body)
	})
}
