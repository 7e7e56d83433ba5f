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
	kind    string // default that of the status
	named   bool   // it is in the form of Anthropic's errors
}

func (e *apiError) Error() string { return e.message }

// badRequest is an error of the client. param is the member that is wrong, or "".
func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...), param: param}
}

// badJSON is an error for a body that is no request.
func badJSON(format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...), kind: "Bad Request"}
}

// badType is one for a body that is JSON.
func badType(format string, args ...any) *apiError {
	return badJSON("Failed to deserialize the JSON body into the target type: "+format, args...)
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

// errInternal is what a client is told of an engine's error that is not its fault.
var errInternal = &apiError{status: http.StatusInternalServerError, message: "Internal server error"}

// nobody is the error of a request whose client has left: its connection ends without an answer, as one that only closed its side for
// writing must not take silence for success.
var nobody = &apiError{}

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

// kind is the type of an error with this status.
func kind(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "BadRequestError"
	case http.StatusNotFound:
		return "NotFoundError"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailableError"
	case http.StatusNotImplemented:
		return "NotImplementedError"
	}
	return "InternalServerError"
}

func (e *apiError) append(b []byte) []byte {
	b = appendString(append(b, `{"error":{"message":`...), e.message)
	b = appendString(append(b, `,"type":`...), cmp.Or(e.kind, kind(e.status)))
	b = appendNullable(append(b, `,"param":`...), e.param)
	b = appendInt(append(b, `,"code":`...), e.status)
	return append(b, "}}"...)
}

// appendNamed writes the error as the API of Anthropic has it.
func (e *apiError) appendNamed(b []byte) []byte {
	kind := "api_error"
	switch e.status {
	case http.StatusBadRequest:
		kind = "invalid_request_error"
	case http.StatusNotFound:
		kind = "not_found_error"
	case http.StatusRequestEntityTooLarge:
		kind = "request_too_large"
	case http.StatusServiceUnavailable:
		kind = "overloaded_error"
	}
	b = appendString(append(b, `{"type":"error","error":{"type":`...), kind)
	return append(appendString(append(b, `,"message":`...), e.message), "}}"...)
}

// inNames is the error in the form of the API of Anthropic.
func (e *apiError) inNames() *apiError {
	if e == nobody {
		return e
	}
	named := *e
	named.named = true
	return &named
}

// write answers with the error.
func (e *apiError) write(w http.ResponseWriter) {
	if e.named {
		writeJSON(w, e.status, e.appendNamed(nil))
	} else {
		writeJSON(w, e.status, e.append(nil))
	}
}

var typeJSON = []string{"application/json"}

// succeed answers with status 200. It returns nil, as a handler does that has answered.
func succeed(w http.ResponseWriter, body []byte) *apiError {
	writeJSON(w, http.StatusOK, body)
	return nil
}

// writeJSON writes an answer in one piece.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = typeJSON
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}
