package recorder

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/zmq"
)

// openGate binds a socket for the engine's messages, where [Config.Data] says. host is
// how the engine reached the tap, which is what it is told if the tap listens
// everywhere; name tells ipc sockets apart.
func (t *tap) openGate(host, name string, typ zmq.Type) (*zmq.Gate, error) {
	endpoint, err := t.dataEndpoint(host, name)
	if err != nil {
		return nil, err
	}
	return zmq.OpenGate(endpoint, typ, zmq.Options{}, t.refused)
}

func (t *tap) dataEndpoint(host, name string) (string, error) {
	data := t.cfg.Data
	if data == "" {
		data = t.cfg.Listen
	}
	if path, ok := strings.CutPrefix(data, "ipc://"); ok {
		return "ipc://" + path + "." + name, nil
	}
	bound, port, err := net.SplitHostPort(strings.TrimPrefix(data, "tcp://"))
	if err != nil {
		return "", fmt.Errorf("address %q for the engine's messages: want tcp://host:port or ipc://path", data)
	}
	if host != "" && (bound == "*" || net.ParseIP(bound).IsUnspecified()) {
		bound = host
	}
	if t.cfg.Data == "" || port == "0" || port == "*" {
		return "tcp://" + net.JoinHostPort(bound, "0"), nil
	}
	first, err := strconv.Atoi(port)
	if err != nil {
		return "", fmt.Errorf("address %q for the engine's messages: %q is no port", data, port)
	}
	return "tcp://" + net.JoinHostPort(bound, strconv.Itoa(first+int(t.ports.Add(1))-1)), nil
}
