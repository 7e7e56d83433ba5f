package edge

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
)

// An apiError is an answer in the form of OpenAI's errors, which is also that of vLLM.
type apiError struct {
	status     int
	message    string
	kind       string // default that of the status
	param      string
	retryAfter time.Duration // 0 says nothing about it
}

// errorKind is the type of an error with this status, as vLLM names it.
func errorKind(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "BadRequestError"
	case http.StatusUnauthorized:
		return "AuthenticationError"
	case http.StatusForbidden:
		return "PermissionDeniedError"
	case http.StatusNotFound:
		return "NotFoundError"
	case http.StatusUnprocessableEntity:
		return "UnprocessableEntityError"
	case http.StatusTooManyRequests:
		return "RateLimitError"
	}
	if status >= http.StatusInternalServerError {
		return "InternalServerError"
	}
	return "APIConnectionError"
}

// json is the body, without a line end.
func (a apiError) json() []byte {
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	body := struct {
		Error inner `json:"error"`
	}{inner{Message: a.message, Type: a.kind, Code: a.status}}
	if a.kind == "" {
		body.Error.Type = errorKind(a.status)
	}
	if a.param != "" {
		body.Error.Param = &a.param
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings and numbers can be encoded
	}
	return text
}

func (a apiError) write(w http.ResponseWriter) {
	body := a.json()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if a.retryAfter > 0 {
		// Whole seconds, rounded up, are all that the header can say. The SDKs of OpenAI read the other header first.
		h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(a.retryAfter.Seconds())), 10))
		h.Set("Retry-After-Ms", strconv.FormatInt(a.retryAfter.Milliseconds(), 10))
	}
	if a.status == http.StatusUnauthorized {
		h.Set("Www-Authenticate", "Bearer")
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(body) // the client may be gone
}

// Refuse answers with an error in the form of OpenAI's.
func Refuse(w http.ResponseWriter, status int, message string) {
	apiError{status: status, message: message}.write(w)
}
