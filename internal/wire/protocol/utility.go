package protocol

import (
	"fmt"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// ResultKind is what a line's engine method returns. A Rust frontend answers
// HTTP 500 to any other kind.
type ResultKind string

// Result kinds, reduced from the return annotation of the engine method.
const (
	ResultNone    ResultKind = "none"
	ResultBool    ResultKind = "bool"
	ResultStr     ResultKind = "str"
	ResultInts    ResultKind = "ints"
	ResultStrings ResultKind = "strings"
	ResultList    ResultKind = "list"
	ResultAny     ResultKind = "any"
)

// UtilityCall is a remote call of a frontend on the engine core
// (vllm/v1/engine/core_client.py call_utility_async).
type UtilityCall struct {
	ClientIndex int
	CallID      uint64 // Python uses the whole range
	Method      string
	Args        [][]byte // raw msgpack values
	// Reply takes the result of a call from a frontend in this process. Without it, the result is sent in a message.
	Reply func(result any, err error)
}

// IsNotice reports whether a UtilityOutput with this call id answers no call: notices have the ids -1 and -2, the constants *_CALL_ID
// of vllm/v1/engine/__init__.py (0.33.0). Calls of Python have ids of 64 bits, of which half are negative as signed numbers.
func IsNotice(callID uint64) bool { return int64(callID) < 0 && int64(callID) >= -2 }

// DecodeUtilityCall reads the payload of a UTILITY message:
// [client_index, call_id, method, args]. On error the fields before the bad one
// are set, so that the caller can be answered.
func DecodeUtilityCall(payload []byte) (call UtilityCall, err error) {
	cur := pack.NewCursor(payload)
	n, err := cur.ArrayLen()
	if err != nil {
		return call, fmt.Errorf("utility call: %w", err)
	}
	if n < 4 {
		return call, fmt.Errorf("utility call: %d values, want [client_index, call_id, method, args]", n)
	}
	if call.ClientIndex, err = smallInt(&cur); err != nil {
		return call, fmt.Errorf("utility call: client_index: %w", err)
	}
	if call.CallID, err = callID(&cur); err != nil {
		return call, fmt.Errorf("utility call: call_id: %w", err)
	}
	if call.Method, err = cur.StrString(); err != nil {
		return call, fmt.Errorf("utility call: method: %w", err)
	}
	args, err := cur.ArrayLen()
	if err != nil {
		return call, fmt.Errorf("utility call %s: args: %w", call.Method, err)
	}
	for i := range args {
		raw, err := cur.Raw()
		if err != nil {
			return call, fmt.Errorf("utility call %s: argument %d: %w", call.Method, i, err)
		}
		call.Args = append(call.Args, raw)
	}
	if n > 4 || !cur.Done() {
		return call, fmt.Errorf("utility call %s: %d bytes after [client_index, call_id, method, args]", call.Method, len(payload)-cur.Offset())
	}
	return call, nil
}

// callID reads a call id: unsigned in both frontends, negative only for the
// ids that Python reserves for its own notifications.
func callID(cur *pack.Cursor) (uint64, error) {
	at := *cur
	v, err := cur.Uint()
	if err == nil {
		return v, nil
	}
	*cur = at
	signed, signedErr := cur.Int()
	if signedErr != nil {
		return 0, err
	}
	return uint64(signed), nil
}

// AppendUtilityCall writes the payload of a UTILITY message; args are raw
// msgpack values.
func AppendUtilityCall(b []byte, call UtilityCall) []byte {
	b = pack.AppendArrayHeader(b, 4)
	b = pack.AppendInt(b, int64(call.ClientIndex))
	b = pack.AppendUint(b, call.CallID)
	b = pack.AppendString(b, call.Method)
	b = pack.AppendArrayHeader(b, len(call.Args))
	for _, arg := range call.Args {
		b = append(b, arg...)
	}
	return b
}

// UtilityResult answers a call with a value of the kind that the line's method
// returns: nil, bool, string, []int64, []string, or raw msgpack bytes, of an
// array for the list kind and of one value for the any kind. Another kind is an
// error, and nothing is to be sent. A method that the profile does not know is
// of the any kind: whether to fail it is the caller's decision.
func (c *Codec) UtilityResult(engineIndex int, call UtilityCall, result any, timestamp float64) (ClientMessage, error) {
	kind := ResultAny
	if u, known := c.profile.Utilities[call.Method]; known {
		kind = u.Result
	}
	value, err := appendResult(nil, kind, result)
	if err != nil {
		return nil, fmt.Errorf("utility %s of line %s: %w", call.Method, c.profile.Line, err)
	}
	u := pack.AppendArrayHeader(nil, c.utility.fields)
	u = pack.AppendNil(pack.AppendUint(u, call.CallID))
	u = pack.AppendArrayHeader(u, 2)
	u = append(pack.AppendNil(u), value...)
	return c.utilityEnvelope(engineIndex, u, timestamp), nil
}

// UtilityFailure answers a call with an error. The wording is the real
// engine's, "Call to NAME method failed: REASON" (vllm/v1/engine/core.py).
func (c *Codec) UtilityFailure(engineIndex int, call UtilityCall, reason string, timestamp float64) ClientMessage {
	u := pack.AppendArrayHeader(nil, c.utility.fields)
	u = pack.AppendUint(u, call.CallID)
	u = pack.AppendString(u, errorText(fmt.Sprintf("Call to %s method failed: %s", call.Method, reason)))
	u = pack.AppendNil(u)
	return c.utilityEnvelope(engineIndex, u, timestamp)
}

func (c *Codec) utilityEnvelope(engineIndex int, utility []byte, timestamp float64) ClientMessage {
	utility = append(utility, c.utility.tail...)
	b := c.envelopeHead(engineIndex)
	return ClientMessage{c.appendEnvelopeTail(b, &envelopeTail{utility: utility, timestamp: timestamp})}
}

func appendResult(b []byte, kind ResultKind, result any) ([]byte, error) {
	switch v := result.(type) {
	case nil:
		if kind == ResultNone || kind == ResultAny {
			return pack.AppendNil(b), nil
		}
	case bool:
		if kind == ResultBool || kind == ResultAny {
			return pack.AppendBool(b, v), nil
		}
	case string:
		if kind == ResultStr || kind == ResultAny {
			return pack.AppendString(b, v), nil
		}
	case []int64:
		if kind == ResultInts || kind == ResultAny {
			b = pack.AppendArrayHeader(b, len(v))
			for _, i := range v {
				b = pack.AppendInt(b, i)
			}
			return b, nil
		}
	case []string:
		if kind == ResultStrings || kind == ResultAny {
			return appendStrings(b, v), nil
		}
	case []byte:
		if kind == ResultAny || kind == ResultList && isArray(v) {
			return append(b, v...), pack.Validate(v)
		}
		if kind == ResultList {
			return nil, fmt.Errorf("the frontend expects a list, not %s", pack.Format(v))
		}
	}
	return nil, fmt.Errorf("the frontend expects a result of kind %s, not %T", kind, result)
}

func isArray(raw []byte) bool {
	cur := pack.NewCursor(raw)
	return cur.Kind() == pack.Array
}

func appendStrings(b []byte, values []string) []byte {
	b = pack.AppendArrayHeader(b, len(values))
	for _, s := range values {
		b = pack.AppendString(b, s)
	}
	return b
}
