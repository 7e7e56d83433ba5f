package dataset

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// bounded reads a file of which no row may be larger than MaxRow.
type bounded struct {
	r    io.Reader
	left int // bytes that the row at hand may still take
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("larger than %d MB", MaxRow>>20)
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// next begins a row.
func (b *bounded) next() { b.left = MaxRow }

// open opens a text file that is not compressed.
func open(path string) (*os.File, *bounded, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	r := bufio.NewReaderSize(file, 1<<20)
	magic, _ := r.Peek(3)
	if bytes.HasPrefix(magic, []byte{0x1f, 0x8b}) {
		file.Close()
		return nil, nil, errGzip
	}
	if string(magic) == "\ufeff" { // what editors on Windows begin a text with
		_, _ = r.Discard(len(magic))
	}
	return file, &bounded{r: r, left: MaxRow}, nil
}

func (t *Table) readLines(path string) error {
	file, r, err := open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(r.r)
	lines.Buffer(nil, MaxRow)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		t.Add(n, fields)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("line %d: larger than %d MB", n+1, MaxRow>>20)
	}
	return lines.Err()
}

// splits are the keys of an object that hold rows.
var splits = []string{"data", "train", "validation", "test"}

func (t *Table) readJSON(path string) error {
	file, r, err := open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	dec := json.NewDecoder(r)
	first, err := dec.Token()
	if errors.Is(err, io.EOF) {
		return nil
	}
	switch {
	case err != nil:
	case first == json.Delim('['):
		err = t.readArray(dec, r)
	case first == json.Delim('{'):
		err = t.readObject(dec, r)
	default:
		err = errors.New("want an array of rows, or an object with one")
	}
	if err != nil {
		return err
	}
	r.next()
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON text: name a file with a row on each line .jsonl")
	}
	return nil
}

// readObject reads the arrays of rows of the object that has begun.
func (t *Table) readObject(dec *json.Decoder, r *bounded) error {
	found := false
	for dec.More() {
		r.next()
		key, err := dec.Token()
		if err != nil {
			return err
		}
		if name, _ := key.(string); !slices.Contains(splits, name) {
			var skipped json.RawMessage
			if err := dec.Decode(&skipped); err != nil {
				return fmt.Errorf("key %.100q: %w", name, err)
			}
			continue
		}
		if open, err := dec.Token(); err != nil || open != json.Delim('[') {
			return fmt.Errorf("key %.100q: want an array of rows", key)
		}
		found = true
		if err := t.readArray(dec, r); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("an object without an array of rows: want one under a key of %q; name a file with a row on each line .jsonl", splits)
	}
	return nil
}

// readArray reads rows up to the end of the array that has begun.
func (t *Table) readArray(dec *json.Decoder, r *bounded) error {
	for n := 1; dec.More(); n++ {
		r.next()
		var fields map[string]any
		if err := dec.Decode(&fields); err != nil {
			return fmt.Errorf("row %d: %w", n, err)
		}
		t.Add(n, fields)
	}
	_, err := dec.Token()
	if err != nil {
		return fmt.Errorf("after row %d: %w", len(t.Rows)+t.Skipped, err)
	}
	return nil
}

func (t *Table) readCSV(path string) error {
	file, r, err := open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	table := csv.NewReader(r)
	table.ReuseRecord = true
	if extension(path) == ".tsv" {
		table.Comma = '\t'
	}
	head, err := table.Read()
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return err
	}
	names := slices.Clone(head)
	for n := 1; ; n++ {
		r.next()
		values, err := table.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("row %d: %w", n, err)
		}
		fields := make(map[string]any, len(names))
		for i, name := range names {
			fields[name] = values[i]
		}
		t.Add(n, fields)
	}
}
