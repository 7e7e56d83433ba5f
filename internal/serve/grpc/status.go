package grpc

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// A Code is the status of a call.
type Code int

// The codes of gRPC.
const (
	OK Code = iota
	Canceled
	Unknown
	InvalidArgument
	DeadlineExceeded
	NotFound
	AlreadyExists
	PermissionDenied
	ResourceExhausted
	FailedPrecondition
	Aborted
	OutOfRange
	Unimplemented
	Internal
	Unavailable
	DataLoss
	Unauthenticated
)

// An Error is a call that failed.
type Error struct {
	Code    Code
	Message string
}

func (e *Error) Error() string { return e.Message }

// Errorf returns an error with a code.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// CodeOf is the code for what is told with this status over HTTP.
func CodeOf(status int) Code {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return InvalidArgument
	case http.StatusUnauthorized:
		return Unauthenticated
	case http.StatusForbidden:
		return PermissionDenied
	case http.StatusNotFound:
		return NotFound
	case http.StatusConflict:
		return Aborted
	case http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		return ResourceExhausted
	case http.StatusNotImplemented:
		return Unimplemented
	case http.StatusServiceUnavailable:
		return Unavailable
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return DeadlineExceeded
	case http.StatusInternalServerError, http.StatusBadGateway:
		return Internal
	}
	return Unknown
}

const (
	contentType = "application/grpc"
	// What follows the messages, or is in the head of an answer without any.
	headerStatus  = "Grpc-Status"
	headerMessage = "Grpc-Message"
)

// IsCall reports whether a request is a call of gRPC.
func IsCall(r *http.Request) bool {
	kind := r.Header.Get("Content-Type")
	return r.Method == http.MethodPost && (kind == contentType || strings.HasPrefix(kind, contentType+"+") || strings.HasPrefix(kind, contentType+";"))
}

// Refuse answers a call with an error and without messages.
func Refuse(w http.ResponseWriter, err *Error) {
	h := w.Header()
	h.Del("Content-Length")
	h["Content-Type"] = []string{contentType}
	h[headerStatus] = []string{strconv.Itoa(int(err.Code))}
	if err.Message != "" {
		h[headerMessage] = []string{encodeMessage(err.Message)}
	}
	w.WriteHeader(http.StatusOK)
}

// encodeMessage writes what a header cannot hold as percent signs with two digits.
func encodeMessage(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
