package testenv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// CheckJSON compares what a command printed as JSON with the table of its section in a page such as docs/json.md. The text
// must be one value. Each of its keys must be in the table, and each key of the table that is not optional must be in each
// object that it belongs to.
//
// A row is "- `goldens[].line` number optional: …"; a key without "optional" must be there. "array, as `goldens[]` of
// [golden list](…)" has the keys of another row, of the same section without "of".
func CheckJSON(page, command string, text []byte) error {
	keys, err := jsonKeys(page, command)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	var value any
	if err := dec.Decode(&value); err != nil {
		return fmt.Errorf("%s: the output is no JSON: %w", command, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("%s: something follows the JSON value", command)
	}
	return errors.Join(checkKeys(keys, "", value)...)
}

// keyRow is a key, its type, and the key and the section that it is like.
var keyRow = regexp.MustCompile("^- `([^`]+)`([^:`]*)(?:`([^`]+)`(?: of \\[([^]]+)])?)?")

// jsonKeys are the documented keys of a command by their paths, and whether each must be there.
func jsonKeys(page, command string) (map[string]bool, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	_, section, found := strings.Cut(string(text), "\n## "+command+"\n")
	if !found {
		return nil, fmt.Errorf("%s has no section %q", page, command)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	keys := map[string]bool{}
	for line := range strings.Lines(section) {
		row := keyRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		name, kind, like, of := row[1], row[2], row[3], row[4]
		keys[name] = !strings.Contains(kind, "optional")
		if like == "" {
			continue
		}
		below := keys
		if of != "" {
			if below, err = jsonKeys(page, of); err != nil {
				return nil, err
			}
		}
		if strings.Contains(kind, "array") {
			name += "[]"
		}
		for key, required := range maps.Clone(below) {
			if rest, ok := strings.CutPrefix(key, like); ok {
				keys[name+rest] = required
			}
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s: section %q has no list of keys", page, command)
	}
	return keys, nil
}

// checkKeys compares a value with the keys below its path.
func checkKeys(keys map[string]bool, path string, value any) (wrong []error) {
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			wrong = append(wrong, checkKeys(keys, path+"[]", element)...)
		}
	case map[string]any:
		if path != "" {
			path += "."
		}
		for name, below := range value {
			if _, known := keys[path+name]; !known {
				wrong = append(wrong, fmt.Errorf("the key %s is not documented", path+name))
			}
			wrong = append(wrong, checkKeys(keys, path+name, below)...)
		}
		for key, required := range keys {
			name, isBelow := strings.CutPrefix(key, path)
			if _, has := value[name]; isBelow && required && !strings.ContainsAny(name, ".[") && !has {
				wrong = append(wrong, fmt.Errorf("the documented key %s is missing", key))
			}
		}
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return wrong
}
