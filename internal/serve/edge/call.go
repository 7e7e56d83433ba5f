package edge

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Paths of the calls of gRPC that generate.
const (
	callGenerate = "/vllm.grpc.engine.VllmEngine/Generate"
	callEmbed    = "/vllm.grpc.engine.VllmEngine/Embed"
)

// isCall reports whether a request is a call of gRPC.
func isCall(r *http.Request) bool {
	kind := r.Header.Get("Content-Type")
	return r.ProtoMajor == 2 && r.Method == http.MethodPost && (kind == "application/grpc" || strings.HasPrefix(kind, "application/grpc+"))
}

// codes are the status codes of gRPC for those of HTTP. Others are UNKNOWN.
var codes = map[int]int{400: 3, 401: 16, 403: 7, 404: 5, 413: 8, 429: 8, 500: 13, 501: 12, 502: 14, 503: 14, 504: 4}

// translateErrors answers a call of gRPC that fails with an HTTP status by a status of gRPC with the same text.
func translateErrors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isCall(r) {
			next.ServeHTTP(w, r)
			return
		}
		call := &callWriter{wrapper: wrapper{w}}
		next.ServeHTTP(call, r)
		call.end()
	})
}

type callWriter struct {
	wrapper
	status int // of an error, 0 without one
	body   []byte
}

// maxErrorBody bounds how much of the body of an error is looked at, in bytes.
const maxErrorBody = 16 << 10

func (w *callWriter) WriteHeader(status int) {
	if status >= http.StatusMultipleChoices {
		w.status = status
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *callWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		return w.ResponseWriter.Write(p)
	}
	w.body = append(w.body, p[:min(len(p), maxErrorBody-len(w.body))]...)
	return len(p), nil
}

func (w *callWriter) Flush() { _ = w.FlushError() }

func (w *callWriter) FlushError() error {
	if w.status != 0 {
		return nil
	}
	return w.wrapper.FlushError()
}

// end sends the error, if there is one.
func (w *callWriter) end() {
	if w.status == 0 {
		return
	}
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	_ = json.Unmarshal(w.body, &body) // the status has a text too
	body.Error.Message = cmp.Or(body.Error.Message, http.StatusText(w.status))
	code, known := codes[w.status]
	if !known {
		code = 2
	}
	h := w.Header()
	h.Del("Content-Length")
	h.Set("Content-Type", "application/grpc")
	h.Set("Grpc-Status", strconv.Itoa(code))
	h.Set("Grpc-Message", url.PathEscape(body.Error.Message))
	w.ResponseWriter.WriteHeader(http.StatusOK)
}

// headOfMessage is how many bytes are before a message of gRPC: a flag and its size.
const headOfMessage = 5

// cutMessage returns the first message of gRPC with its head, nil if it is not whole.
func cutMessage(b []byte, _ int) ([]byte, error) {
	if len(b) < headOfMessage {
		return nil, nil
	}
	size := binary.BigEndian.Uint32(b[1:])
	if size > maxAnswer {
		return nil, fmt.Errorf("a message of the answer has more than %d bytes", maxAnswer)
	}
	if len(b)-headOfMessage < int(size) {
		return nil, nil
	}
	return b[:headOfMessage+int(size)], nil
}

// malformMessage returns half of a message of gRPC, which cannot be decoded.
func malformMessage(message []byte) []byte {
	half := bytes.Clone(message[:headOfMessage+(len(message)-headOfMessage)/2])
	binary.BigEndian.PutUint32(half[1:], uint32(len(half)-headOfMessage))
	return half
}
