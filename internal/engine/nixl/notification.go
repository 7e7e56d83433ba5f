package nixl

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Notification is what a decode engine sends to a prefill engine by NIXL: that it has read the blocks of a request, or that it
// still wants those of some.
type Notification struct {
	Request string
	// Readers is how many workers of the decode engine read the blocks, each of which notifies.
	Readers int
	// Heartbeat are the requests whose leases go on; nil for a read.
	Heartbeat []string
}

const heartbeat = "HB:"

// ParseNotification reads "REQUEST:READERS" and "HB:REQUEST,REQUEST".
func ParseNotification(text string) (n Notification, err error) {
	if ids, is := strings.CutPrefix(text, heartbeat); is {
		n.Heartbeat = strings.Split(ids, ",")
		return n, nil
	}
	at := strings.LastIndexByte(text, ':')
	if at < 1 {
		return n, errors.New("a notification without a request: want REQUEST:READERS or HB:REQUEST,REQUEST")
	}
	n.Request = text[:at]
	if n.Readers, err = strconv.Atoi(text[at+1:]); err != nil || n.Readers < 1 {
		return n, fmt.Errorf("a notification with %q readers: want a number from 1", text[at+1:])
	}
	return n, nil
}

// String is the notification as it is sent.
func (n Notification) String() string {
	if n.Heartbeat != nil {
		return heartbeat + strings.Join(n.Heartbeat, ",")
	}
	return fmt.Sprintf("%s:%d", n.Request, n.Readers)
}
