package protocol

import (
	"errors"
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// RewriteInit returns the frontend's answer to HELLO with each address passed
// through replace; all other bytes, keys this project does not know among them,
// stay as they are. replace is given the socket that the address is of and, for inputs
// and outputs, the client index. The address at which the frontend's statistics are
// published is between a frontend and its coordinator, and is left alone.
//
// A tap needs this: the engine is to dial the tap, and otherwise to hear just what
// the frontend said.
func RewriteInit(payload []byte, replace func(socket AddressKey, client int, address string) (string, error)) ([]byte, error) {
	if _, err := DecodeInit(payload); err != nil {
		return nil, err
	}
	// DecodeInit has walked over all of it: what follows cannot fail for its form.
	out, err := rewriteMap(payload, func(key string, value []byte) ([]byte, error) {
		if key != "addresses" {
			return value, nil
		}
		return rewriteMap(value, func(key string, value []byte) ([]byte, error) {
			switch k := AddressKey(key); k {
			case InputAddresses, OutputAddresses:
				return rewriteStrings(k, value, replace)
			case CoordinatorInputAddress, CoordinatorOutputAddress:
				return rewriteOptional(k, value, replace)
			}
			return value, nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("handshake init: %w", err)
	}
	return out, nil
}

// AnnouncedEngines is how many engines a frontend says in INIT that it has, 0 if it does not say: only one in Python with
// a mixture-of-experts model does.
func AnnouncedEngines(payload []byte) (n int) {
	_ = eachKey(payload, func(key string, cur *pack.Cursor) error {
		raw, err := cur.Raw()
		if err != nil || key != "parallel_config" {
			return err
		}
		return eachKey(raw, func(key string, cur *pack.Cursor) error {
			if key != "data_parallel_size" {
				return cur.Skip()
			}
			size, err := cur.Int()
			n = max(int(size), 0)
			return err
		})
	})
	return n
}

// An AddressKey is a key of [Addresses] on the wire.
type AddressKey string

// The addresses an engine dials.
const (
	InputAddresses           AddressKey = "inputs"
	OutputAddresses          AddressKey = "outputs"
	CoordinatorInputAddress  AddressKey = "coordinator_input"
	CoordinatorOutputAddress AddressKey = "coordinator_output"
)

// rewriteMap copies a map and passes each value through f.
func rewriteMap(payload []byte, f func(key string, value []byte) ([]byte, error)) ([]byte, error) {
	cur := pack.NewCursor(payload)
	n, err := cur.MapLen()
	if err != nil {
		return nil, err
	}
	out := pack.AppendMapHeader(nil, n)
	for range n {
		begin := cur.Offset()
		key, err := cur.StrString()
		if err != nil {
			return nil, err
		}
		out = append(out, payload[begin:cur.Offset()]...)
		value, err := cur.Raw()
		if err != nil {
			return nil, err
		}
		if value, err = f(key, value); err != nil {
			return nil, err
		}
		out = append(out, value...)
	}
	if !cur.Done() {
		return nil, errors.New("bytes behind the map")
	}
	return out, nil
}

func rewriteStrings(key AddressKey, value []byte, replace func(AddressKey, int, string) (string, error)) ([]byte, error) {
	cur := pack.NewCursor(value)
	addresses, err := decodeStrings(&cur)
	if err != nil {
		return nil, err
	}
	for i, a := range addresses {
		if addresses[i], err = replace(key, i, a); err != nil {
			return nil, err
		}
	}
	return appendStrings(nil, addresses), nil
}

func rewriteOptional(key AddressKey, value []byte, replace func(AddressKey, int, string) (string, error)) ([]byte, error) {
	cur := pack.NewCursor(value)
	address, err := decodeOptional(&cur)
	if err != nil || address == nil {
		return value, err
	}
	changed, err := replace(key, 0, *address)
	return pack.AppendString(nil, changed), err
}
