package protocol

import (
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
	for _, key := range []AddressKey{InputAddresses, OutputAddresses, CoordinatorInputAddress, CoordinatorOutputAddress} {
		find := func(i int) Value { // anew, as the message has changed
			v := ViewOf(payload).Field("addresses").Field(string(key))
			if v.Kind() == pack.Array {
				return v.At(i)
			}
			return v
		}
		for i := range max(1, ViewOf(payload).Field("addresses").Field(string(key)).Len()) {
			address := find(i)
			if address.Kind() != pack.String {
				continue
			}
			changed, err := replace(key, i, address.Text())
			if err != nil {
				return nil, fmt.Errorf("handshake init: addresses: %s: %w", key, err)
			}
			payload = address.Set(pack.AppendString(nil, changed))
		}
	}
	return payload, nil
}

// AnnouncedEngines is how many engines a frontend says in INIT that it has, 0 if it does not say: only one in Python with
// a mixture-of-experts model does.
func AnnouncedEngines(payload []byte) int {
	return int(max(ViewOf(payload).Field("parallel_config").Field("data_parallel_size").Count(), 0))
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
