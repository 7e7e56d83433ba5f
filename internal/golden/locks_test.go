package golden

import (
	"context"
	"errors"
	"testing"
)

func TestDigestLocks(t *testing.T) {
	var l digestLocks
	leave, err := l.enter(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.enter(t.Context(), "b")
	if err != nil {
		t.Fatalf("another digest: %v", err)
	}
	other()

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := l.enter(ctx, "a"); err == nil || err.Error() != "enough" {
		t.Errorf("while it is busy: %v, want the cause of the end of waiting", err)
	}

	entered := make(chan func())
	go func() {
		leave, _ := l.enter(t.Context(), "a")
		entered <- leave
	}()
	leave()
	(<-entered)()
	if len(l.done) != 0 {
		t.Errorf("%d digests are busy for ever", len(l.done))
	}
}
