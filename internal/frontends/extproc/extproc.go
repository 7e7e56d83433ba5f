// Package extproc asks an endpoint picker for the server of a request, as Envoy does: by the external processing protocol, of which it
// needs few fields.
package extproc

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// A Picker is a connection to an endpoint picker.
type Picker struct{ conn *grpc.ClientConn }

// Dial returns a picker at HOST:PORT, to which it connects at the first request.
func Dial(address string) (*Picker, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	return &Picker{conn}, err
}

// Close ends the connection.
func (p *Picker) Close() error { return p.conn.Close() }

// An Answer is what a picker answers: an endpoint with changes of the request, or a refusal.
type Answer struct {
	Endpoint string            // HOST:PORT; empty for a refusal
	Headers  map[string]string // to be set in the request, by their names in small letters
	Request  []byte            // another body of the request; nil for the client's
	Status   int               // of a refusal
	Body     []byte            // of a refusal
	left     int               // parts of the body that have no answer
}

// Destination is the header in which pickers name the endpoint.
const Destination = "x-gateway-destination-endpoint"

// Fields of envoy.service.ext_proc.v3 and envoy.config.core.v3.
const (
	requestHeaders, requestBody  = 2, 4 // ProcessingRequest
	answerHeaders, answerBody    = 1, 3 // ProcessingResponse
	immediateResponse            = 7
	commonResponse               = 1 // HeadersResponse, BodyResponse
	headerMutation, bodyMutation = 2, 3
	setHeaders                   = 1
	mutatedBody, streamedBody    = 1, 3 // BodyMutation
)

// Pick asks for the endpoint of a request.
func (p *Picker) Pick(ctx context.Context, r *http.Request, body []byte) (a *Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	stream, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/envoy.service.ext_proc.v3.ExternalProcessor/Process", grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("the endpoint picker: %w", err)
	}
	var headers []byte
	add := func(name, value string) {
		one := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
		one = protowire.AppendString(protowire.AppendTag(one, 3, protowire.BytesType), value) // raw_value
		headers = message(headers, 1, one)
	}
	add(":method", r.Method)
	add(":path", r.URL.RequestURI())
	add(":authority", r.Host)
	for name, values := range r.Header {
		add(strings.ToLower(name), strings.Join(values, ","))
	}
	all := [][]byte{message(nil, requestHeaders, message(nil, 1, headers))}
	for part := range slices.Chunk(body, 64<<10) { // as Envoy does
		all = append(all, message(nil, requestBody, message(nil, 1, part)))
	}
	end := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)
	all = append(all, message(nil, requestBody, end))
	for _, one := range all {
		if err := stream.SendMsg(&one); err != nil && err != io.EOF {
			return nil, fmt.Errorf("the endpoint picker: %w", err)
		}
	}
	a = &Answer{Headers: map[string]string{}, Status: http.StatusServiceUnavailable, left: len(all) - 1}
	for {
		var got []byte
		if err := stream.RecvMsg(&got); err != nil {
			return nil, fmt.Errorf("the endpoint picker at %s has answered no endpoint by envoy.service.ext_proc.v3: %w", p.conn.Target(), err)
		}
		if a.read(got) {
			_ = stream.CloseSend()
			return a, nil
		}
	}
}

// read reads an answer of the picker. It is whole when nothing more is to come about the request. Some pickers answer each part of the
// body, and name the endpoint with the last one.
func (a *Answer) read(answer []byte) (whole bool) {
	if at(answer, immediateResponse) != nil {
		for _, code := range at(answer, immediateResponse, 1, 1) {
			status, _ := protowire.ConsumeVarint(code)
			a.Status = int(status)
		}
		a.Endpoint, a.Body = "", slices.Concat(at(answer, immediateResponse, 3)...)
		return true
	}
	for _, of := range []protowire.Number{answerHeaders, answerBody} {
		for _, header := range at(answer, of, commonResponse, headerMutation, setHeaders, 1) {
			name := string(slices.Concat(at(header, 1)...))
			a.Headers[name] = string(slices.Concat(at(header, 2)...)) + string(slices.Concat(at(header, 3)...)) // value or raw_value
			if name == Destination {
				a.Endpoint, _, _ = strings.Cut(a.Headers[name], ",")
			}
		}
	}
	for _, body := range at(answer, answerBody) {
		parts := at(body, commonResponse, bodyMutation, streamedBody)
		a.left--
		whole = len(parts) == 0 && (a.Endpoint != "" || a.left <= 0) || len(parts) > 0 && at(parts[0], 2) != nil // end_of_stream
		for _, path := range [][]protowire.Number{{mutatedBody}, {streamedBody, 1}} {
			for _, part := range at(body, append([]protowire.Number{commonResponse, bodyMutation}, path...)...) {
				a.Request = append(a.Request, part...)
			}
		}
	}
	return whole
}

// message appends a message as a field.
func message(b []byte, number protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), m)
}

// at returns the values at a path of fields: the bytes of a text or message, or of a varint.
func at(b []byte, path ...protowire.Number) (all [][]byte) {
	if len(path) == 0 {
		return [][]byte{b}
	}
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil // of another protocol
		}
		size := protowire.ConsumeFieldValue(number, kind, b[n:])
		if size < 0 {
			return nil
		}
		value := b[n : n+size]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		if number == path[0] {
			all = append(all, at(value, path[1:]...)...)
		}
		b = b[n+size:]
	}
	return all
}

// rawCodec leaves messages as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), b...)
	return nil
}
func (rawCodec) Name() string { return "proto" }
