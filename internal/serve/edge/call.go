package edge

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/vllm-vcr/conformance/internal/serve/grpc"
)

// A callWriter answers a call of gRPC: an HTTP error becomes a status of gRPC with the text of the error.
type callWriter struct {
	http.ResponseWriter
	status int // of an error, 0 without one
	body   []byte
}

// mostErrorBody is how much of the body of an error is looked at.
const mostErrorBody = 16 << 10

func (w *callWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

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
	w.body = append(w.body, p[:min(len(p), mostErrorBody-len(w.body))]...)
	return len(p), nil
}

func (w *callWriter) FlushError() error {
	if w.status != 0 {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
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
	if body.Error.Message == "" {
		body.Error.Message = http.StatusText(w.status)
	}
	grpc.Refuse(w.ResponseWriter, grpc.Errorf(grpc.CodeOf(w.status), "%s", body.Error.Message))
}

func malformEvent(event []byte) []byte {
	return append(bytes.Clone(event[:len(event)/2]), "\n\n"...)
}

// headOfMessage is how many bytes are before a message of gRPC: a flag and its size.
const headOfMessage = 5

// readMessage reads a message of gRPC with its head.
func readMessage(r *bufio.Reader) ([]byte, error) {
	head, err := r.Peek(headOfMessage)
	if err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxEvent {
		return nil, fmt.Errorf("a message of the answer has more than %d bytes", maxEvent)
	}
	message := make([]byte, headOfMessage+size)
	_, err = io.ReadFull(r, message)
	return message, err
}

// malformMessage is half of a message of gRPC, which cannot be decoded.
func malformMessage(message []byte) []byte {
	half := message[:headOfMessage+(len(message)-headOfMessage)/2]
	binary.BigEndian.PutUint32(half[1:], uint32(len(half)-headOfMessage))
	return half
}
