package router

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// A picker is an endpoint picker with a proxy of ours before it, which asks it as Envoy does: by the external processing protocol, of
// which it needs few fields.
type picker struct {
	url    string
	conn   *grpc.ClientConn
	server *http.Server
}

// newPicker starts the proxy.
func newPicker(address string) (*picker, error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		conn.Close()
		return nil, err
	}
	p := &picker{url: "http://" + l.Addr().String(), conn: conn}
	p.server = &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = p.server.Serve(l) }()
	return p, nil
}

func (p *picker) Close() {
	_ = p.server.Close()
	_ = p.conn.Close()
}

// ServeHTTP asks the picker for the engine of a request, and sends it there.
func (p *picker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	answer, err := p.pick(r.Context(), r, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	if answer.endpoint == "" {
		w.WriteHeader(answer.status)
		_, _ = w.Write(answer.body)
		return
	}
	if answer.request != nil {
		body = answer.request
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Transport: forwarding, Rewrite: func(out *httputil.ProxyRequest) {
		out.SetURL(&url.URL{Scheme: "http", Host: answer.endpoint})
		for name, value := range answer.headers {
			if !strings.HasPrefix(name, ":") { // what a request line has
				out.Out.Header.Set(name, value)
			}
		}
		out.Out.Body, out.Out.ContentLength = io.NopCloser(strings.NewReader(string(body))), int64(len(body))
	}}
	proxy.ServeHTTP(w, r)
}

// picked is what a picker answers: an endpoint with changes of the request, or a refusal.
type picked struct {
	endpoint string // HOST:PORT
	headers  map[string]string
	request  []byte // another body; nil for the client's
	status   int
	body     []byte
}

// destination is the header in which pickers name the endpoint.
const destination = "x-gateway-destination-endpoint"

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

// pick asks for the engine of a request.
func (p *picker) pick(ctx context.Context, r *http.Request, body []byte) (a *picked, err error) {
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
	for _, one := range append(all, message(nil, requestBody, end)) {
		if err := stream.SendMsg(&one); err != nil && err != io.EOF {
			return nil, fmt.Errorf("the endpoint picker: %w", err)
		}
	}
	a = &picked{headers: map[string]string{}, status: http.StatusServiceUnavailable}
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

// read reads an answer of the picker. It is whole when nothing more is to come about the request.
func (a *picked) read(answer []byte) (whole bool) {
	if at(answer, immediateResponse) != nil {
		for _, code := range at(answer, immediateResponse, 1, 1) {
			status, _ := protowire.ConsumeVarint(code)
			a.status = int(status)
		}
		a.endpoint, a.body = "", slices.Concat(at(answer, immediateResponse, 3)...)
		return true
	}
	for _, of := range []protowire.Number{answerHeaders, answerBody} {
		for _, header := range at(answer, of, commonResponse, headerMutation, setHeaders, 1) {
			name := string(slices.Concat(at(header, 1)...))
			a.headers[name] = string(slices.Concat(at(header, 2)...)) + string(slices.Concat(at(header, 3)...)) // value or raw_value
			if name == destination {
				a.endpoint, _, _ = strings.Cut(a.headers[name], ",")
			}
		}
	}
	for _, body := range at(answer, answerBody) {
		parts := at(body, commonResponse, bodyMutation, streamedBody)
		whole = len(parts) == 0 || at(parts[0], 2) != nil // end_of_stream
		for _, path := range [][]protowire.Number{{mutatedBody}, {streamedBody, 1}} {
			for _, part := range at(body, append([]protowire.Number{commonResponse, bodyMutation}, path...)...) {
				a.request = append(a.request, part...)
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
