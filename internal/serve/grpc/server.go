package grpc

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Handler serves a method: it reads requests with [Call.Recv] and answers with [Call.Send]. The error that it returns is the
// status of the call, if it is an [*Error]. The context ends when the client leaves or its deadline passes.
type Handler func(ctx context.Context, c *Call) error

// Unary makes a handler of a method that answers one request with one message.
func Unary(answer func(ctx context.Context, request []byte) ([]byte, error)) Handler {
	return func(ctx context.Context, c *Call) error {
		request, err := c.One()
		if err != nil {
			return err
		}
		message, err := answer(ctx, request)
		if err != nil {
			return err
		}
		return c.Send(message)
	}
}

// A Server has the methods that it serves by their path, "/package.Service/Method".
type Server map[string]Handler

// MaxMessage is how many bytes a request may have.
const MaxMessage = 64 << 20

// A Call is one that is being served.
type Call struct {
	w       http.ResponseWriter
	body    io.Reader
	gzipped bool // messages may be
	flusher *http.ResponseController
	begun   bool // the head is sent
	frame   []byte
}

func (s Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor < 2 {
		http.Error(w, "gRPC requires HTTP/2", http.StatusHTTPVersionNotSupported)
		return
	}
	ctx := r.Context()
	if text := r.Header.Get("Grpc-Timeout"); text != "" {
		timeout, err := parseTimeout(text)
		if err != nil {
			Refuse(w, Errorf(Internal, "malformed grpc-timeout: %v", err))
			return
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	w.Header()["Grpc-Accept-Encoding"] = []string{"identity,gzip"}
	c := &Call{w: w, body: r.Body, flusher: http.NewResponseController(w)}
	switch encoding := r.Header.Get("Grpc-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		c.gzipped = true
	default:
		Refuse(w, Errorf(Unimplemented, "grpc-encoding %q is not supported, want identity or gzip", encoding))
		return
	}
	serve, known := s[r.URL.Path]
	if !known {
		Refuse(w, Errorf(Unimplemented, "Method not found!"))
		return
	}
	err := serve(ctx, c)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = Errorf(DeadlineExceeded, "Deadline Exceeded")
	}
	c.end(err)
}

// end sends the status of the call.
func (c *Call) end(err error) {
	status := &Error{}
	if err != nil && !errors.As(err, &status) {
		status = Errorf(Unknown, "%v", err)
	}
	if !c.begun && err != nil {
		Refuse(c.w, status)
		return
	}
	c.begin()
	h := c.w.Header()
	h[http.TrailerPrefix+headerStatus] = []string{strconv.Itoa(int(status.Code))}
	if status.Message != "" {
		h[http.TrailerPrefix+headerMessage] = []string{encodeMessage(status.Message)}
	}
}

func (c *Call) begin() {
	if !c.begun {
		c.begun = true
		c.w.Header()["Content-Type"] = []string{contentType}
		c.w.WriteHeader(http.StatusOK)
	}
}

// Recv returns the next message of the client, which is valid until the next call, and [io.EOF] behind the last one.
func (c *Call) Recv() ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(c.body, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, io.EOF
		}
		return nil, readError(err)
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > MaxMessage {
		return nil, Errorf(ResourceExhausted, "the message has %d bytes: want at most %d", size, MaxMessage)
	}
	b := bytes.NewBuffer(c.frame[:0])
	if _, err := io.CopyN(b, c.body, int64(size)); err != nil {
		return nil, readError(err)
	}
	c.frame = b.Bytes()
	switch {
	case head[0] == 0:
		return c.frame, nil
	case head[0] != 1 || !c.gzipped:
		return nil, Errorf(Internal, "the message has the flag %d, but no grpc-encoding is named", head[0])
	}
	unzip, err := gzip.NewReader(bytes.NewReader(c.frame))
	if err != nil {
		return nil, Errorf(Internal, "the message is no gzip: %v", err)
	}
	message, err := io.ReadAll(io.LimitReader(unzip, MaxMessage+1))
	switch {
	case err != nil:
		return nil, Errorf(Internal, "the message is no gzip: %v", err)
	case len(message) > MaxMessage:
		return nil, Errorf(ResourceExhausted, "the message has more than %d bytes", MaxMessage)
	}
	return message, nil
}

// readError is the status for a body that did not come.
func readError(err error) error {
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return Errorf(ResourceExhausted, "the body of the request has more than %d bytes", tooLarge.Limit)
	}
	return Errorf(Canceled, "the request was not received: %v", err)
}

// One returns the only message of the client.
func (c *Call) One() ([]byte, error) {
	message, err := c.Recv()
	if err == io.EOF {
		err = Errorf(Internal, "the call has no message")
	}
	return message, err
}

// Send sends a message at once.
func (c *Call) Send(message []byte) error {
	c.begin()
	var head [5]byte
	binary.BigEndian.PutUint32(head[1:], uint32(len(message)))
	if _, err := c.w.Write(head[:]); err != nil {
		return err
	}
	if _, err := c.w.Write(message); err != nil {
		return err
	}
	return c.flusher.Flush()
}

// parseTimeout reads a grpc-timeout: up to eight digits and a unit.
func parseTimeout(text string) (time.Duration, error) {
	units := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}
	digits := strings.TrimRight(text, "HMSmun")
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || len(digits) > 8 || len(digits) != len(text)-1 {
		return 0, fmt.Errorf("%q: want up to 8 digits and one of H, M, S, m, u, n", text)
	}
	return time.Duration(min(n, uint64(24*365*time.Hour/units[text[len(text)-1]]))) * units[text[len(text)-1]], nil
}
