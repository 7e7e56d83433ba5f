package builtin

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/protocol"
)

// An apiError is an answer in the form of OpenAI's errors, as vLLM has it since 0.33.
type apiError struct {
	status  int
	message string
	param   string // "" is null
	place   string // in a body that could not be read: a member, or the number of a character
	kind    string // default that of the status
	named   bool   // it is in the form of Anthropic's errors
}

func (e *apiError) Error() string { return e.message }

// badRequest is an error of the client. param is the member that is wrong, or "".
func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...), param: param}
}

// badBody is an error for a body that is not a request. vLLM finds such errors while it reads the body, and gives them
// this type.
func badBody(format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...), kind: "Bad Request"}
}

// ofPython is an error of reading a body as the Python frontend has it: it names the member.
func (e *apiError) ofPython(member string) *apiError {
	e.param = "body"
	if member != "" {
		e.param += "." + member
	}
	return e
}

func modelNotFound(name string) *apiError {
	return &apiError{status: http.StatusNotFound, message: "The model `" + name + "` does not exist.", param: "model"}
}

// noModel is the error for a model that is not served. The Python frontend names the others.
func (s *Server) noModel(name string, ofPython bool) *apiError {
	err := modelNotFound(name)
	if ofPython && s.sim == nil {
		err.message += " Valid aliases: " + strings.Join(s.models.base, ", ") + "."
	}
	return err
}

// errInternal is the answer to a request that failed in the engine without a fault of the client.
var errInternal = &apiError{status: http.StatusInternalServerError, message: "Internal server error"}

// errLeft is the error of a request whose client has left: its connection ends without an answer, as one that only
// closed its side for writing must not take silence for success.
var errLeft = &apiError{}

// errHeld is the error of an answer for which there is no room any more.
var errHeld = &apiError{
	status:  http.StatusServiceUnavailable,
	message: "the answers that are not streamed have more than 1 GiB: ask for less, or for a stream",
}

// ofEngine is the error that a request of the engine ended with; nil is one without a reason.
func ofEngine(reason *protocol.RequestError) *apiError {
	switch {
	case reason == nil:
	case reason.Code == "validation_error":
		return &apiError{status: http.StatusBadRequest, message: reason.Message}
	case reason.Retryable:
		return &apiError{status: http.StatusServiceUnavailable, message: reason.Message}
	}
	return errInternal
}

// errorKinds are the types of errors by their status, of OpenAI's and of Anthropic's.
var errorKinds = map[int]struct{ open, named string }{
	http.StatusBadRequest:            {"BadRequestError", "invalid_request_error"},
	http.StatusNotFound:              {"NotFoundError", "not_found_error"},
	http.StatusRequestEntityTooLarge: {"", "request_too_large"},
	http.StatusServiceUnavailable:    {"ServiceUnavailableError", "overloaded_error"},
	http.StatusNotImplemented:        {"NotImplementedError", ""},
}

// body is the error as JSON has it.
func (e *apiError) body() object {
	kinds := errorKinds[e.status]
	if e.named {
		return object{{"type", "error"}, {"error", object{{"type", cmp.Or(kinds.named, "api_error")}, {"message", e.message}}}}
	}
	return object{{"error", object{
		{"message", e.message}, {"type", cmp.Or(e.kind, kinds.open, "InternalServerError")}, {"param", orNull(e.param)}, {"code", e.status},
	}}}
}

// inNames is the error in the form of the API of Anthropic.
func (e *apiError) inNames() *apiError {
	if e == errLeft {
		return e
	}
	named := *e
	named.named = true
	return &named
}

var typeJSON = []string{"application/json"}

// succeed answers with status 200. It returns nil, as a handler does that has answered.
func succeed(w http.ResponseWriter, v any) *apiError {
	writeJSON(w, http.StatusOK, v)
	return nil
}

// writeJSON writes an answer in one piece.
func writeJSON(w http.ResponseWriter, status int, v any) {
	b := newJSONBuffer()
	defer b.release()
	b.value(v)
	b.Truncate(b.Len() - 1) // the line end
	h := w.Header()
	h["Content-Type"] = typeJSON
	h["Content-Length"] = []string{strconv.Itoa(b.Len())}
	w.WriteHeader(status)
	_, _ = b.WriteTo(w) // the client may be gone
}
