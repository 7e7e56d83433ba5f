package inspect

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/trace"
)

// mooncakeBlock is how many tokens a hash of a FormatMooncake trace covers.
const mooncakeBlock = 512

// mooncake reads the traces of https://github.com/kvcache-ai/FormatMooncake (FAST25-release/traces): one JSON object for each request,
// timestamps in ms from the first one on. A hash id identifies a block and all before it, and the last block may be a part of one.
func (in *Input) mooncake(name string, r *bufio.Reader) {
	blockSize := mooncakeBlock
	in.Meta.BlockSize = &blockSize
	in.Lacks = lacksTimes
	in.each = func(yield func(*trace.Record) error) error {
		for line := 1; ; line++ {
			text, err := r.ReadBytes('\n')
			if errors.Is(err, io.EOF) && len(bytes.TrimSpace(text)) == 0 {
				return nil
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("%s:%d: %w", name, line, err)
			}
			if text = bytes.TrimSpace(text); len(text) == 0 {
				continue
			}
			rec, err := mooncakeRecord(text)
			if err == nil {
				err = yield(rec)
			}
			if err != nil {
				return fmt.Errorf("%s:%d: %w", name, line, err)
			}
		}
	}
}

func mooncakeRecord(text []byte) (*trace.Record, error) {
	var row struct {
		Timestamp *float64 `json:"timestamp"`
		Input     *int     `json:"input_length"`
		Output    *int     `json:"output_length"`
		Hashes    []uint64 `json:"hash_ids"`
	}
	if err := json.Unmarshal(text, &row); err != nil {
		return nil, err
	}
	if row.Timestamp == nil || row.Input == nil || row.Output == nil {
		return nil, errors.New("want timestamp, input_length and output_length")
	}
	if whole := *row.Input / mooncakeBlock; len(row.Hashes) > whole+1 {
		return nil, fmt.Errorf("%d hash_ids for an input_length of %d: want one for each %d tokens", len(row.Hashes), *row.Input, mooncakeBlock)
	} else if len(row.Hashes) > whole {
		row.Hashes = row.Hashes[:max(whole, 0)]
	}
	return untimed(&trace.Record{PromptTokens: *row.Input, OutputTokens: *row.Output, ArrivalMs: row.Timestamp, BlockHashes: row.Hashes}), nil
}

// table reads the public traces in CSV: FormatBurstGPT (https://github.com/HPMLL/FormatBurstGPT) counts seconds, and Azure's
// (https://github.com/Azure/AzurePublicDataset) has dates.
func (in *Input) table(name string, r io.Reader) error {
	rows := csv.NewReader(r)
	rows.ReuseRecord, rows.FieldsPerRecord, rows.TrimLeadingSpace = true, -1, true
	header, err := rows.Read()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	columns := []string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
	when := new(dates).ms
	if in.Format == FormatBurstGPT {
		columns = []string{"Timestamp", "Request tokens", "Response tokens"}
		when = secondsToMs
	}
	var at [3]int
	for i, column := range columns {
		at[i] = slices.IndexFunc(header, func(text string) bool {
			return strings.EqualFold(strings.TrimSpace(strings.TrimPrefix(text, "\ufeff")), column)
		})
		if at[i] < 0 {
			return fmt.Errorf("%s: no column %s: the columns are %s", name, column, strings.Join(header, ", "))
		}
	}
	in.Lacks = append([]string{"prompts and their hashes: which prompts have a common beginning is not known, so every prompt is computed whole"}, lacksTimes...)
	in.each = func(yield func(*trace.Record) error) error {
		for {
			row, err := rows.Read()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			line, _ := rows.FieldPos(0)
			rec, err := tableRecord(row, at, columns, when)
			switch {
			case err == nil && rec.OutputTokens == 0:
				in.skip("failed (0 tokens of answer)")
				continue
			case err == nil:
				err = yield(rec)
			}
			if err != nil {
				return fmt.Errorf("%s:%d: %w", name, line, err)
			}
		}
	}
	return nil
}

func tableRecord(row []string, at [3]int, columns []string, when func(string) (float64, error)) (*trace.Record, error) {
	var texts [3]string
	for i, column := range at {
		if column >= len(row) {
			return nil, fmt.Errorf("it has %d fields, and %s is field %d", len(row), columns[i], column+1)
		}
		texts[i] = strings.TrimSpace(row[column])
	}
	ms, err := when(texts[0])
	if err != nil {
		return nil, fmt.Errorf("%s is %q: %w", columns[0], texts[0], err)
	}
	var counts [2]int
	for i := range counts {
		// Some releases of these tables were written by programs that make 374.0 of 374.
		n, err := strconv.ParseFloat(texts[i+1], 64)
		if err != nil || n < 0 || n != float64(int(n)) {
			return nil, fmt.Errorf("%s is %q: want a number of tokens", columns[i+1], texts[i+1])
		}
		counts[i] = int(n)
	}
	return untimed(&trace.Record{PromptTokens: counts[0], OutputTokens: counts[1], ArrivalMs: &ms}), nil
}

func secondsToMs(text string) (float64, error) {
	s, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, errors.New("want a number of seconds")
	}
	return ofSeconds(s), nil
}

// dates counts from the first one.
type dates struct{ first time.Time }

func (d *dates) ms(text string) (float64, error) {
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00", time.RFC3339, "2006-01-02T15:04:05"} {
		at, err := time.Parse(layout, text)
		if err != nil {
			continue
		}
		if d.first.IsZero() {
			d.first = at
		}
		return float64(at.Sub(d.first)) / float64(time.Millisecond), nil
	}
	return 0, errors.New("want a date such as 2023-11-16 18:15:46.6805900")
}
