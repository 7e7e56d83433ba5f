package builtin

import "testing"

// TestPythonSyntax: the errors are those of json.loads of Python 3.11.
func TestPythonSyntax(t *testing.T) {
	for _, test := range []struct {
		text, what string
		at         int
	}{
		{"", "Expecting value", 0},
		{"{\"a\":", "Expecting value", 5},
		{"{\"a\" 1}", "Expecting ':' delimiter", 5},
		{"{a:1}", "Expecting property name enclosed in double quotes", 1},
		{"{\"a\":1,}", "Expecting property name enclosed in double quotes", 7},
		{"[1,]", "Expecting value", 3},
		{"[1 2]", "Expecting ',' delimiter", 3},
		{"{\"a\":1 \"b\"}", "Expecting ',' delimiter", 7},
		{"\"abc", "Unterminated string starting at", 0},
		{"{\"a\":\"b", "Unterminated string starting at", 5},
		{"{\"a\":\"b\nc\"}", "Invalid control character at", 7},
		{"{\"a\":\"\\x\"}", "Invalid \\escape", 6},
		{"{\"a\":\"\\u12\"}", "Invalid \\uXXXX escape", 7},
		{"{\"a\":\"\\u12zz\"}", "Invalid \\uXXXX escape", 7},
		{"{} x", "Extra data", 3},
		{"nul", "Expecting value", 0},
		{"-", "Expecting value", 0},
		{"01", "Extra data", 1},
		{"[", "Expecting value", 1},
		{"{", "Expecting property name enclosed in double quotes", 1},
		{"{\"a\":1", "Expecting ',' delimiter", 6},
		{"[1", "Expecting ',' delimiter", 2},
		{"1.", "Extra data", 1},
		{"1e", "Extra data", 1},
		{"\"\\", "Unterminated string starting at", 0},
		{"{\"é\":}", "Expecting value", 6},
		{"{\"a\":\"\\", "Unterminated string starting at", 5},
		{"  ", "Expecting value", 2},
		{"[tru]", "Expecting value", 1},
		{"-x", "Expecting value", 0},
		{"{\"a\":-}", "Expecting value", 5},
		{"1.5e+", "Extra data", 3},
		{"[NaN, -Infinity]", "", 0},
		{"{\"a\":\"\\uD8\"", "Invalid \\uXXXX escape", 7},
		{"\"\\u", "Invalid \\uXXXX escape", 2},
		{"{\"a\":[{}, [], {\"b\":[1.5e3, \"\\u00e9\\n\"]}] } ", "", 0},
		{"[[1], {\"a\":{}}", "Expecting ',' delimiter", 14},
	} {
		if what, at := pythonSyntax(test.text); what != test.what || at != test.at {
			t.Errorf("%q: got %q at %d, want %q at %d", test.text, what, at, test.what, test.at)
		}
	}
}
