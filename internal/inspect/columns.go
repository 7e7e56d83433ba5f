package inspect

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vllm-vcr/conformance/trace"
)

// FormatRequests is a table with a row for each request: CSV, or a JSON object in each line. See [Columns].
const FormatRequests Format = "requests"

// Columns say which column of a table has which value: "arrival" to "start_time:ms", for example. Values that are not set are looked
// for under usual names, among them those of vLLM's statistics of a request.
type Columns map[string]string

// usualColumns are the values of a table, and the names of columns that have them.
var usualColumns = map[string][]string{
	"arrival":   {"arrival_time", "arrival", "arrival_ts", "arrived_at", "arrival_ms", "start_time", "request_start_time", "timestamp"},
	"prompt":    {"input_toks", "input_tokens", "prompt_tokens", "num_prompt_tokens", "prompt_len", "input_len"},
	"output":    {"output_toks", "output_tokens", "completion_tokens", "num_generation_tokens", "generated_tokens", "output_len"},
	"first":     {"first_token_ts", "first_token_time", "first_token_at", "first_token"},
	"end":       {"last_token_ts", "last_token_time", "finished_time", "end_time", "end_ts", "finished_at", "end"},
	"ttft":      {"ttft", "ttft_ms", "ttft_s", "time_to_first_token", "time_to_first_token_ms"},
	"latency":   {"latency", "latency_ms", "latency_s", "e2e_latency", "e2e_latency_ms", "e2e", "e2e_ms", "e2e_s"},
	"queued":    {"queued_ts", "queued_time"},
	"scheduled": {"scheduled_ts", "scheduled_time", "first_scheduled_time"},
	"engine":    {"engine", "engine_id", "engine_index", "instance", "instance_id", "replica", "server", "model"},
}

// ParseColumns reads a list such as "arrival=start:ms,prompt=in,output=out". Units are s, ms, us and ns.
func ParseColumns(text string) (Columns, error) {
	columns := Columns{}
	for pair := range strings.SplitSeq(text, ",") {
		value, column, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if _, known := usualColumns[value]; !ok || !known || column == "" {
			return nil, fmt.Errorf("%q: want VALUE=COLUMN, with a value of %s", pair, strings.Join(slices.Sorted(maps.Keys(usualColumns)), ", "))
		}
		columns[value] = column
	}
	return columns, nil
}

// find is the column of a value among those that there are, "" for none, with the unit of its times in ms.
func (c Columns) find(value string, has func(string) bool) (column string, unit float64) {
	units := map[string]float64{"s": 1e3, "ms": 1, "us": 1e-3, "ns": 1e-6}
	if given := c[value]; given != "" {
		if name, suffix, ok := cutLast(given, ":"); ok && units[suffix] != 0 {
			return name, units[suffix]
		}
		column = given
	} else if i := slices.IndexFunc(usualColumns[value], has); i >= 0 {
		column = usualColumns[value][i]
	}
	if _, suffix, ok := cutLast(column, "_"); ok && units[suffix] != 0 {
		return column, units[suffix]
	}
	return column, 1e3
}

func cutLast(text, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(text, sep); i >= 0 {
		return text[:i], text[i+len(sep):], true
	}
	return text, "", false
}

// requests reports whether a table with these columns has results of requests.
func (c Columns) requests(has func(string) bool) bool {
	found := func(value string) bool { name, _ := c.find(value, has); return name != "" }
	return found("prompt") && found("output") && (found("first") || found("ttft")) && (found("end") || found("latency"))
}

// timed is a row of a table. Times are in ms by the table's clock, NaN where there are none.
type timed struct {
	line           int
	prompt, output int
	times          map[string]float64
	engine         string
}

// requests reads a table of requests.
func (in *Input) requests(columns Columns) func(data []byte) ([]trace.Record, error) {
	return func(data []byte) ([]trace.Record, error) {
		rows, err := tableRows(data)
		if err != nil {
			return nil, err
		}
		var all []timed
		for _, read := range rows {
			line, row := read.line, read.values
			has := func(name string) bool { return row[name] != "" }
			if !columns.requests(func(name string) bool { _, ok := row[name]; return ok }) {
				return nil, fmt.Errorf("line %d: want prompt, output, first or ttft, and end or latency; the columns are %s: name them with --columns, such as prompt=COLUMN",
					line, strings.Join(slices.Sorted(maps.Keys(row)), ", "))
			}
			r, err := columns.row(row, has)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			if math.IsNaN(r.times["arrival"]) {
				return nil, fmt.Errorf("line %d: it has no arrival", line)
			}
			if r.line = line; r.output == 0 || math.IsNaN(r.times["first"]+r.times["end"]) {
				in.skip("without an answer")
				continue
			}
			if len(all) > 0 && r.engine != all[0].engine {
				return nil, fmt.Errorf("line %d: it is a result of %q, and line %d of %q: split the file by the column that names the engine", line, r.engine, all[0].line, all[0].engine)
			}
			all = append(all, r)
		}
		in.Lacks = []string{
			"the gap between each two tokens: only their mean for each request", "which part of a prompt was in the prefix cache",
			"token ids, hashes of prompts, and which request continues another", "the reason why an answer ended",
		}
		return in.recordsOf(all)
	}
}

// recordsOf makes records of rows. Arrivals may be by another clock than the times of tokens. If there is the time too at which the
// engine put a request into its queue, the request that it took first after its arrival shows how far the clocks are apart.
func (in *Input) recordsOf(all []timed) (records []trace.Record, err error) {
	const another = 60e3 // ms: no request waits so long before the queue
	apart := math.Inf(1)
	for _, r := range all {
		apart = min(apart, r.times["queued"]-r.times["arrival"])
	}
	if math.IsNaN(apart) || math.IsInf(apart, 0) || math.Abs(apart) < another {
		apart = 0
	} else {
		in.lack("arrivals by the clock of the tokens: they are moved, so that the request that was queued soonest after its arrival did not wait before")
	}
	for _, r := range all {
		at := r.times["arrival"] + apart
		first, end := r.times["first"]-at, r.times["end"]-at
		if !(first >= 0) || !(end >= first) {
			return nil, fmt.Errorf("line %d: the first token is %.3f ms and the end %.3f ms after the arrival: want times that go forward, by one clock", r.line, first, end)
		}
		rec := trace.Record{
			PromptTokens: r.prompt, OutputTokens: r.output, TTFTMs: first, ArrivalMs: &at, FinishReason: trace.FinishAbsent, Line: r.line,
		}
		if r.output > 1 {
			rec.ITLSummary = &trace.ITLSummary{Count: r.output - 1, MeanMs: (end - first) / float64(r.output-1)}
		}
		if wait := r.times["scheduled"] - at; wait >= 0 {
			rec.Extra = map[string]json.RawMessage{queueKey: strconv.AppendFloat(nil, wait, 'f', 3, 64)}
		}
		records = append(records, rec)
	}
	return records, nil
}

// queueKey is the key of a record for how long a request waited before the engine began with it, ms.
const queueKey = "queue_ms"

// row reads a row. Values of first and end that are missing follow from ttft and latency.
func (c Columns) row(row map[string]string, has func(string) bool) (r timed, err error) {
	r.times = map[string]float64{}
	for value := range usualColumns {
		column, unit := c.find(value, has)
		text := row[column]
		switch value {
		case "prompt", "output":
			n := 0.0
			if text != "" {
				n, err = strconv.ParseFloat(text, 64)
			}
			if err != nil || n < 0 || n > maxPrompt || n != math.Trunc(n) {
				return r, fmt.Errorf("%s is %q: want a number of tokens", column, text)
			}
			if value == "prompt" {
				r.prompt = int(n)
			} else {
				r.output = int(n)
			}
		case "engine":
			r.engine = text
		default:
			if r.times[value], err = timeOf(text, unit); err != nil {
				return r, fmt.Errorf("%s is %q: %w", column, text, err)
			}
		}
	}
	for of, after := range map[string]string{"first": "ttft", "end": "latency"} {
		if math.IsNaN(r.times[of]) {
			r.times[of] = r.times["arrival"] + r.times[after]
		}
	}
	return r, nil
}

// timeOf is a time in ms, NaN of an empty text.
func timeOf(text string, unit float64) (float64, error) {
	if text == "" {
		return math.NaN(), nil
	}
	if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsInf(v, 0) {
		return v * unit, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0, errors.New("want a number, or a time such as 2026-01-31T12:00:00.5Z")
	}
	return float64(at.UnixNano()) / 1e6, nil
}

type tableRow struct {
	line   int
	values map[string]string // by column
}

// tableRows reads CSV with a header, or a JSON object in each line.
func tableRows(data []byte) (rows []tableRow, err error) {
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		for i, text := range bytes.Split(data, []byte("\n")) {
			if text = bytes.TrimSpace(text); len(text) == 0 {
				continue
			}
			var raw map[string]json.RawMessage
			if err := decode(text, &raw); err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			values := map[string]string{}
			for key, value := range raw {
				text := string(value)
				if text == "null" {
					text = ""
				} else if text[0] == '"' {
					_ = json.Unmarshal(value, &text) // decode has read it
				}
				values[key] = text
			}
			rows = append(rows, tableRow{i + 1, values})
		}
		return rows, nil
	}
	table := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))))
	table.TrimLeadingSpace = true
	header, err := table.Read()
	if err != nil {
		return nil, err
	}
	for {
		fields, err := table.Read()
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := table.FieldPos(0)
		values := map[string]string{}
		for i, name := range header {
			values[strings.TrimSpace(name)] = strings.TrimSpace(fields[i])
		}
		rows = append(rows, tableRow{line, values})
	}
}
