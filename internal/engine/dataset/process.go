package dataset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/vllm-vcr/conformance/internal/base/lazyregexp"
	"github.com/vllm-vcr/conformance/internal/base/safetext"
	"github.com/vllm-vcr/conformance/trace"
)

// Program is the name of the program that reads Parquet and SQLite, without the suffix of an executable.
const Program = "vllm-vcr-dataset"

// message is a row of a table, or its end.
type message struct {
	Row                   *Row
	Skipped, FirstSkipped int
	Keys                  []string
}

// WriteTable writes a table as [ReadBy] reads it.
func WriteTable(w io.Writer, t Table) error {
	out := msgpack.NewEncoder(w)
	for i := range t.Rows {
		if err := out.Encode(message{Row: &t.Rows[i]}); err != nil {
			return err
		}
	}
	return out.Encode(message{Skipped: t.Skipped, FirstSkipped: t.FirstSkipped, Keys: t.Keys})
}

// Limit bounds what the rows of a compressed file of so many bytes may take, in bytes: 64 times its size, and 64 MiB of any.
func Limit(size int64) int64 { return trace.InflatedLimit(size) }

// ErrTooLarge is the error of rows that take more.
func ErrTooLarge(size int64) error {
	return fmt.Errorf("the rows of this file of %d bytes take more than %d: if it is meant to be so, write it as .jsonl", size, Limit(size))
}

// ReadBy has the program at a path read tables, each in a process of its own, which ends with ctx.
func ReadBy(ctx context.Context, program string) TableReader {
	return func(path string) (t Table, err error) {
		size := int64(0) // of a file that does not exist, which the program reports
		if info, err := os.Stat(path); err == nil {
			size = info.Size()
		}
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
		unread := readTable(stdout, &t, size)
		if unread != nil {
			_ = cmd.Process.Kill() // it may wait for its output to be read
		}
		if err := cmd.Wait(); err != nil {
			if outOfMemory().MatchString(stderr.String()) {
				return t, ErrTooLarge(size)
			}
			if reason := strings.TrimSpace(stderr.String()); reason != "" {
				return t, errors.New(safetext.Clip(safetext.Line(reason), 2000))
			}
			if unread == nil || errors.Is(unread, io.EOF) {
				return t, fmt.Errorf("%s: %w", program, err)
			}
		}
		if unread != nil {
			return t, fmt.Errorf("the output of %s is not a table: %w", program, unread)
		}
		return t, nil
	}
}

// WriteParquetBy has the program at a path write a new file in Parquet, of a trace (kind is requests) or of step statistics (steps), whose
// lines write writes.
func WriteParquetBy(ctx context.Context, program, kind, path string, write func(io.Writer) error) error {
	cmd := exec.CommandContext(ctx, program, "write", kind, path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	unwritten := write(stdin)
	if unwritten != nil {
		_ = cmd.Process.Kill() // it would write what it has got
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil && stderr.Len() > 0 {
		return errors.New(safetext.Clip(safetext.Line(strings.TrimSpace(stderr.String())), 2000))
	} else if unwritten == nil && err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return unwritten
}

// outOfMemory is what the Go runtime writes last when it gets no more memory, in one of several wordings.
var outOfMemory = lazyregexp.New(`(?m)^fatal error: .*(out of memory|cannot allocate memory)`)

func readTable(r io.Reader, t *Table, size int64) error {
	for in := msgpack.NewDecoder(r); ; {
		var m message
		if err := in.Decode(&m); err != nil {
			return err
		}
		if m.Row == nil {
			t.Skipped, t.FirstSkipped, t.Keys = m.Skipped, m.FirstSkipped, m.Keys
			return nil
		}
		if t.Append(*m.Row); t.Taken() > Limit(size) {
			return ErrTooLarge(size)
		}
	}
}
