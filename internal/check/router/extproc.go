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
	partial  bool   // more of it is to come
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
		whole, err := a.read(got)
		switch {
		case err != nil:
			return nil, fmt.Errorf("the endpoint picker answers in another protocol than envoy.service.ext_proc.v3: %w", err)
		case whole:
			_ = stream.CloseSend()
			return a, nil
		}
	}
}

// read reads an answer of the picker. It is whole when nothing more is to come about the request.
func (a *picked) read(answer []byte) (whole bool, err error) {
	err = fields(answer, func(number protowire.Number, value []byte) error {
		switch number {
		case immediateResponse:
			whole, a.endpoint = true, ""
			return fields(value, func(n protowire.Number, v []byte) error {
				switch n {
				case 1:
					return fields(v, func(_ protowire.Number, code []byte) error {
						status, _ := protowire.ConsumeVarint(code)
						a.status = int(status)
						return nil
					})
				case 3:
					a.body = v
				}
				return nil
			})
		case answerHeaders, answerBody:
			err := fields(value, func(n protowire.Number, common []byte) error {
				if n != commonResponse {
					return nil
				}
				return fields(common, a.mutation)
			})
			whole = whole || number == answerBody && !a.partial
			return err
		}
		return nil
	})
	return whole, err
}

// mutation reads a change of the request.
func (a *picked) mutation(number protowire.Number, value []byte) error {
	switch number {
	case bodyMutation:
		return fields(value, func(n protowire.Number, v []byte) error {
			switch n {
			case mutatedBody:
				a.request = v
			case streamedBody:
				a.partial = true
				return fields(v, func(n protowire.Number, part []byte) error {
					switch n {
					case 1:
						a.request = append(a.request, part...)
					case 2: // end_of_stream
						a.partial = false
					}
					return nil
				})
			}
			return nil
		})
	case headerMutation:
		return fields(value, func(n protowire.Number, option []byte) error {
			if n != setHeaders {
				return nil
			}
			return fields(option, func(n protowire.Number, header []byte) error {
				if n != 1 {
					return nil
				}
				var name, text string
				err := fields(header, func(n protowire.Number, v []byte) error {
					switch n {
					case 1:
						name = string(v)
					case 2, 3: // value, raw_value
						if len(v) > 0 {
							text = string(v)
						}
					}
					return nil
				})
				if a.headers[name] = text; name == destination {
					a.endpoint, _, _ = strings.Cut(text, ",")
				}
				return err
			})
		})
	}
	return nil
}

// message appends a message as a field.
func message(b []byte, number protowire.Number, m []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), m)
}

// fields calls of with each field of a message: the bytes of a text or message, or of a varint.
func fields(b []byte, of func(number protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(number, kind, b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		value := b[:size]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		if err := of(number, value); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

// rawCodec leaves messages as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), b...)
	return nil
}
func (rawCodec) Name() string { return "proto" }
