package grpc

import (
	"context"
	"io"
	"slices"
	"strings"
)

// EngineService is the full name of vLLM's service.
const EngineService = "vllm.grpc.engine.VllmEngine"

// Serve adds the methods of a service under its full name.
func (s Server) Serve(service string, methods map[string]Handler) {
	for name, serve := range methods {
		s["/"+service+"/"+name] = serve
	}
}

// AddReflection adds the services by which clients such as grpcurl ask what there is. They tell of all services of the server.
func (s Server) AddReflection() {
	for _, version := range []string{"v1", "v1alpha"} {
		s.Serve("grpc.reflection."+version+".ServerReflection", map[string]Handler{"ServerReflectionInfo": s.reflect})
	}
}

func (s Server) reflect(_ context.Context, c *Call) error {
	for {
		request, err := c.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var host string
		var kind int
		var asked []byte
		if err := Fields(request, func(f Field) (err error) {
			if f.Number == 1 {
				host, err = f.Text()
			} else {
				kind, asked = f.Number, f.Bytes()
			}
			return err
		}); err != nil {
			return err
		}
		b := AppendBytes(AppendString(nil, 1, host), 2, request)
		if err := c.Send(s.appendReflection(b, kind, string(asked))); err != nil {
			return err
		}
	}
}

// appendReflection writes the answer to what was asked about a name, by the number of its field in ServerReflectionRequest.
func (s Server) appendReflection(b []byte, kind int, name string) []byte {
	const byName, bySymbol, byExtension, extensions, services = 3, 4, 5, 6, 7
	var found *file
	problem := Errorf(NotFound, "%s not found", name)
	for _, f := range s.files() {
		switch {
		case kind == byName && f.name == name, kind == bySymbol && f.declares(name):
			found = f
		case kind == extensions && slices.Contains(f.symbols, name):
			return AppendMessage(b, 5, func(b []byte) []byte { return AppendString(b, 1, name) }) // it has none
		}
	}
	switch {
	case found != nil:
		return AppendMessage(b, 4, func(b []byte) []byte {
			b = AppendBytes(b, 1, found.descriptor)
			for _, f := range files() {
				if slices.Contains(found.needs, f.name) {
					b = AppendBytes(b, 1, f.descriptor)
				}
			}
			return b
		})
	case kind == services:
		return AppendMessage(b, 6, func(b []byte) []byte {
			for _, name := range s.Services() {
				b = AppendMessage(b, 1, func(b []byte) []byte { return AppendString(b, 1, name) })
			}
			return b
		})
	case kind == byExtension:
		problem = Errorf(NotFound, "there are no extensions")
	case kind < byName || kind > services:
		problem = Errorf(InvalidArgument, "invalid MessageRequest: %d", kind)
	}
	return AppendMessage(b, 7, func(b []byte) []byte { return AppendString(AppendUint(b, 1, uint64(problem.Code)), 2, problem.Message) })
}

// declares reports whether a file has a type, a service, a method, or a field of a type.
func (f *file) declares(name string) bool {
	if slices.Contains(f.symbols, name) {
		return true
	}
	at := strings.LastIndexByte(name, '.')
	return at > 0 && slices.Contains(f.symbols, name[:at])
}

// files are those of the services of this server, and those that they need.
func (s Server) files() (own []*file) {
	served := s.Services()
	needed := map[string]bool{}
	for _, f := range slices.Backward(files()) { // what is needed comes before
		if needed[f.name] || slices.ContainsFunc(f.services, func(name string) bool { return slices.Contains(served, name) }) {
			own = append(own, f)
			for _, name := range f.needs {
				needed[name] = true
			}
		}
	}
	return own
}

// Services are the full names of the services, sorted.
func (s Server) Services() (names []string) {
	for path := range s {
		name, _, _ := strings.Cut(path[1:], "/")
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// AddHealth adds the health check of gRPC for the server as a whole and for a service. healthy is asked at each call, and ended is
// closed when it will not be true again.
func (s Server) AddHealth(service string, healthy func() bool, ended <-chan struct{}) {
	const unknownService = 3
	check := func(request []byte) (status uint64, name string, err error) {
		err = Fields(request, func(f Field) (err error) {
			if f.Number == 1 {
				name, err = f.Text()
			}
			return err
		})
		switch {
		case name != "" && name != service:
			return unknownService, name, err
		case healthy():
			return 1, name, err
		}
		return 2, name, err
	}
	s.Serve("grpc.health.v1.Health", map[string]Handler{
		"Check": Unary(func(_ context.Context, request []byte) ([]byte, error) {
			status, name, err := check(request)
			if err == nil && status == unknownService {
				err = Errorf(NotFound, "Unknown service: %s", name)
			}
			return AppendUint(nil, 1, status), err
		}),
		"Watch": func(ctx context.Context, c *Call) error {
			request, err := c.One()
			if err != nil {
				return err
			}
			for _, over := range []<-chan struct{}{ended, nil} {
				status, _, err := check(request)
				if err == nil {
					err = c.Send(AppendUint(nil, 1, status))
				}
				if err != nil {
					return err
				}
				select {
				case <-over:
				case <-ctx.Done():
					return Errorf(Canceled, "the client has left")
				}
			}
			return nil
		},
	})
}
