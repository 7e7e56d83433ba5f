package pyast

import (
	"context"
	"testing"
)

// newParser returns a parser that is closed with the test.
func newParser(t testing.TB) *Parser {
	t.Helper()
	p, err := New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}
