package dataset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/vllm-vcr/conformance/internal/base/safetext"
)

// Program is the name of the program that reads Parquet and SQLite, without the suffix of an executable.
const Program = "vllm-vcr-dataset"

// message is a row of a table, or its end.
type message struct {
	Row     *Row
	Skipped int
	Keys    []string
}

// WriteTable writes a table as [ReadBy] reads it.
func WriteTable(w io.Writer, t Table) error {
	out := msgpack.NewEncoder(w)
	for i := range t.Rows {
		if err := out.Encode(message{Row: &t.Rows[i]}); err != nil {
			return err
		}
	}
	return out.Encode(message{Skipped: t.Skipped, Keys: t.Keys})
}

// ReadBy has the program at a path read tables, each in a process of its own, which ends with ctx.
func ReadBy(ctx context.Context, program string) TableReader {
	return func(path string) (t Table, err error) {
		cmd := exec.CommandContext(ctx, program, path)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			return t, err
		}
		if err := cmd.Start(); err != nil {
			return t, err
		}
		unread := readTable(stdout, &t)
		if unread != nil {
			_ = cmd.Process.Kill() // it may wait for its output to be read
		}
		if err := cmd.Wait(); err != nil {
			if reason := strings.TrimSpace(stderr.String()); reason != "" {
				return t, errors.New(safetext.Clip(safetext.Line(reason), 2000))
			}
			if unread == nil || errors.Is(unread, io.EOF) {
				return t, fmt.Errorf("%s: %w", program, err)
			}
		}
		if unread != nil {
			return t, fmt.Errorf("what %s writes is no table: %w", program, unread)
		}
		return t, nil
	}
}

func readTable(r io.Reader, t *Table) error {
	for in := msgpack.NewDecoder(r); ; {
		var m message
		if err := in.Decode(&m); err != nil {
			return err
		}
		if m.Row == nil {
			t.Skipped, t.Keys = m.Skipped, m.Keys
			return nil
		}
		t.Rows = append(t.Rows, *m.Row)
	}
}
