package kvevents

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ofRank is the endpoint of a data-parallel rank: each has a port of its own. Port 0 is
// any free one for all of them.
func ofRank(endpoint string, rank int) (string, error) {
	if rank == 0 {
		return endpoint, nil
	}
	if !strings.HasPrefix(endpoint, "tcp://") {
		return "", fmt.Errorf("endpoint %q of KV events: data-parallel rank %d needs one of its own, which only tcp:// has, by its port",
			endpoint, rank)
	}
	at := strings.LastIndexByte(endpoint, ':')
	port, err := strconv.Atoi(endpoint[at+1:])
	switch {
	case err != nil:
		return "", fmt.Errorf("endpoint %q of KV events: want tcp://host:port with a number for data-parallel rank %d to add to", endpoint, rank)
	case port == 0:
		return endpoint, nil
	case port+rank > 65535:
		return "", fmt.Errorf("endpoint %q of KV events: there is no port %d for data-parallel rank %d", endpoint, port+rank, rank)
	}
	return endpoint[:at+1] + strconv.Itoa(port+rank), nil
}

// binds reports whether an engine listens at the endpoint, by the rule that vLLM has;
// it dials others. Nobody can dial port 0.
func binds(endpoint string) bool {
	return strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") || strings.HasPrefix(endpoint, "ipc://") ||
		anyPort(endpoint)
}

// anyPort reports whether the endpoint leaves the port to the system.
func anyPort(endpoint string) bool {
	return strings.HasPrefix(endpoint, "tcp://") && (strings.HasSuffix(endpoint, ":0") || strings.HasSuffix(endpoint, ":*"))
}

// reported is what a ready response says of an endpoint that was bound: what was
// configured, or where it is if the system chose the port.
func reported(configured, bound string) string {
	if !anyPort(configured) {
		return configured
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(bound, "tcp://"))
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return "tcp://" + net.JoinHostPort(nodeIP(), port)
	}
	return bound
}

// nodeIP is the address of this machine towards others: the one it would send from to
// 192.0.2.1, which is nobody's. Nothing is sent.
func nodeIP() string {
	c, err := net.Dial("udp4", "192.0.2.1:9")
	if err != nil {
		return "127.0.0.1"
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil {
		return "127.0.0.1"
	}
	return host
}
