package zmq

import (
	"bytes"
	"fmt"
)

// What the first byte of a message to a publisher means; the prefix follows.
// https://rfc.zeromq.org/spec/23/ "The Publish-Subscribe Pattern".
const (
	cancelByte    = 0
	subscribeByte = 1
)

// Names of the commands that say the same from version 3.1 of ZMTP on. Publishers
// understand both; what we dial is told that we speak 3.0, and is sent messages.
const (
	subscribeCommand = "SUBSCRIBE"
	cancelCommand    = "CANCEL"
)

// Subscribe asks the publisher that a SUB or XSUB connection leads to for the messages
// whose first frame begins with prefix; an empty one asks for all. What is published
// before the publisher has read this is missed, and nothing says when it has.
func (c *Conn) Subscribe(prefix []byte) error { return c.subscription(subscribeByte, prefix) }

// Unsubscribe takes back a Subscribe with the same prefix.
func (c *Conn) Unsubscribe(prefix []byte) error { return c.subscription(cancelByte, prefix) }

func (c *Conn) subscription(kind byte, prefix []byte) error {
	if c.typ != Sub && c.typ != XSub {
		return fmt.Errorf("subscribe at %s: a %s socket does not subscribe", c.peer, c.typ)
	}
	return c.Send(append([]byte{kind}, prefix...))
}

// isSubscription reports whether frames are what Subscribe and Unsubscribe send.
func isSubscription(frames [][]byte) bool {
	return len(frames) == 1 && len(frames[0]) > 0 && frames[0][0] <= subscribeByte
}

// A subscriptions is the set of prefixes a subscriber asked for. As in libzmq,
// subscribing twice is subscribing once.
type subscriptions struct {
	prefixes [][]byte
	size     int // bytes of all prefixes
}

// What a subscriber may ask for: far above any use, and no more than a misled peer
// may make a publisher keep and compare.
const (
	maxPrefixes    = 1024
	maxPrefixBytes = 1 << 20
)

// A wish is what a subscriber says: that it wants a prefix, or no more. The zero wish
// is none: as in libzmq, what is no subscription is ignored.
type wish struct {
	kind   byte // subscribeByte or cancelByte, if some
	some   bool
	prefix []byte
}

func readMessage(m Message) wish {
	if !isSubscription(m) {
		return wish{}
	}
	return wish{some: true, kind: m[0][0], prefix: m[0][1:]}
}

func readCommand(body []byte) (wish, error) {
	name, prefix, err := splitCommand(body)
	switch {
	case err != nil:
		return wish{}, err
	case name == subscribeCommand:
		return wish{some: true, kind: subscribeByte, prefix: prefix}, nil
	case name == cancelCommand:
		return wish{some: true, kind: cancelByte, prefix: prefix}, nil
	}
	return wish{}, nil
}

// change grants a wish and reports whether there is a prefix more.
func (s *subscriptions) change(w wish) (added bool, err error) {
	at := s.index(w.prefix)
	switch {
	case !w.some || (w.kind == subscribeByte) == (at >= 0):
		return false, nil
	case w.kind == cancelByte:
		s.size -= len(w.prefix)
		s.prefixes = append(s.prefixes[:at], s.prefixes[at+1:]...)
		return false, nil
	case len(s.prefixes) == maxPrefixes || s.size+len(w.prefix) > maxPrefixBytes:
		return false, fmt.Errorf("%w: more than %d subscriptions, or %d bytes of them", ErrTooLarge, maxPrefixes, maxPrefixBytes)
	}
	s.size += len(w.prefix)
	s.prefixes = append(s.prefixes, bytes.Clone(w.prefix))
	return true, nil
}

func (s *subscriptions) index(prefix []byte) int {
	for i, p := range s.prefixes {
		if bytes.Equal(p, prefix) {
			return i
		}
	}
	return -1
}

// match reports whether topic, the first frame of a message, begins with a prefix that
// was asked for.
func (s *subscriptions) match(topic []byte) bool {
	for _, p := range s.prefixes {
		if bytes.HasPrefix(topic, p) {
			return true
		}
	}
	return false
}
