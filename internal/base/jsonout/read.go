package jsonout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ReadObject reads the only value of a text, a JSON object, into a struct. Its error names a member that the struct does not have, or
// that has the wrong type.
func ReadObject(text string, into any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var other *json.UnmarshalTypeError
	switch {
	case errors.As(err, &other) && other.Field != "":
		return fmt.Errorf("%s has the wrong type: %s", other.Field, other.Value)
	case errors.As(err, &other):
		return fmt.Errorf("it is a JSON %s", other.Value)
	case err == nil && strings.TrimSpace(text) == "null":
		return errors.New("it is null")
	case err != nil:
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("something follows the object at byte %d", d.InputOffset())
	}
	return nil
}
