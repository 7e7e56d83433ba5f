package protocol

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/vllm-vcr/conformance/internal/wire/pack"
)

// defaultOf encodes the default of a field that this package has no value for:
// a real engine writes every field, defaults included. A required field has
// none and is refused.
func (c *Codec) defaultOf(structName string, f Field) ([]byte, error) {
	if f.Required {
		return nil, c.unknownRequired(structName, f.Name)
	}
	def, err := defaultBytes(f)
	if err != nil {
		return nil, fmt.Errorf("wire profile %s: %s.%s: %w", c.profile.Line, structName, f.Name, err)
	}
	return def, nil
}

// unknownRequired is the error for a profile field that a newer release
// requires and this package has no value for.
func (c *Codec) unknownRequired(structName, field string) error {
	return fmt.Errorf("wire profile %s: %s.%s is required and this build has no value for it: teach internal/wire/protocol the field",
		c.profile.Line, structName, field)
}

func defaultBytes(f Field) ([]byte, error) {
	if len(f.Default) == 0 {
		return pack.AppendNil(nil), nil
	}
	var v any
	if err := json.Unmarshal(f.Default, &v); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case nil:
		return pack.AppendNil(nil), nil
	case bool:
		return pack.AppendBool(nil, v), nil
	case string:
		if strings.HasPrefix(f.Type, "str") {
			return pack.AppendString(nil, v), nil
		}
	case float64:
		if strings.HasPrefix(f.Type, "float") {
			return pack.AppendFloat64(nil, v), nil
		}
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return pack.AppendInt(nil, int64(v)), nil
		}
	case []any:
		if len(v) == 0 {
			return pack.AppendArrayHeader(nil, 0), nil
		}
	case map[string]any:
		if len(v) == 0 && strings.HasPrefix(f.Type, "dict[") {
			return pack.AppendMapHeader(nil, 0), nil
		}
	}
	return nil, fmt.Errorf("default %s of type %s cannot be written", f.Default, f.Type)
}
