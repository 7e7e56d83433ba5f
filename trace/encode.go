package trace

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"
)

// appendRecord appends the record's line without its line feed: keys in the
// customary order, absent ones left out.
func appendRecord(b []byte, r *Record) ([]byte, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	var err error
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(r.PromptTokens), 10)
	b = append(b, `,"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(r.CachedTokens), 10)
	b = append(b, `,"output_tokens":`...)
	b = strconv.AppendInt(b, int64(r.OutputTokens), 10)
	b = append(b, `,"ttft_ms":`...)
	if b, err = appendFloat(b, r.TTFTMs); err != nil {
		return nil, within(err, "ttft_ms")
	}
	if b, err = r.appendGaps(b); err != nil {
		return nil, err
	}
	b = append(b, `,"concurrency":`...)
	b = strconv.AppendUint(b, r.Concurrency, 10)
	if r.ArrivalMs != nil {
		b = append(b, `,"arrival_ms":`...)
		if b, err = appendFloat(b, *r.ArrivalMs); err != nil {
			return nil, within(err, "arrival_ms")
		}
	}
	if r.ITLCtx != nil {
		b = appendUints(append(b, `,"itl_ctx":{"num_running":`...), r.ITLCtx.NumRunning)
		b = appendUints(append(b, `,"prefill_tokens":`...), r.ITLCtx.PrefillTokens)
		b = append(b, '}')
	}
	if b, err = r.appendContent(b); err != nil {
		return nil, err
	}
	if r.FinishReason != FinishAbsent {
		b = append(b, `,"finish_reason":"`...)
		b = append(append(b, r.FinishReason.String()...), '"')
	}
	if r.EndedByFrontend {
		b = append(b, `,"ended_by_frontend":true`...)
	}
	if b, err = r.appendError(b); err != nil {
		return nil, err
	}
	isKnown := func(key string) bool { return fieldOf([]byte(key)) != unknown }
	if b, err = appendExtra(b, 0, r.Extra, 2, isKnown); err != nil {
		return nil, err
	}
	return append(b, '}'), nil
}

// appendError appends why the request failed.
func (r *Record) appendError(b []byte) (_ []byte, err error) {
	if r.Error == nil {
		return b, nil
	}
	if b, err = appendString(append(b, `,"request_error":{"code":`...), r.Error.Code); err != nil {
		return nil, within(err, "request_error.code")
	}
	if r.Error.Message != "" {
		if b, err = appendString(append(b, `,"message":`...), r.Error.Message); err != nil {
			return nil, within(err, "request_error.message")
		}
	}
	b = strconv.AppendBool(append(b, `,"retryable":`...), r.Error.Retryable)
	return append(b, '}'), nil
}

// appendGaps appends the itl keys up to itl_summary, and whose clock they are by.
func (r *Record) appendGaps(b []byte) ([]byte, error) {
	var err error
	if r.ITLMs != nil {
		b = append(b, `,"itl_ms":`...)
		if b, err = appendFloats(b, r.ITLMs); err != nil {
			return nil, within(err, "itl_ms")
		}
	}
	if r.ITLTokens != nil {
		b = appendUints(append(b, `,"itl_tokens":`...), r.ITLTokens)
	}
	if s := r.ITLSummary; s != nil {
		b = append(b, `,"itl_summary":{"mean_ms":`...)
		if b, err = appendFloat(b, s.MeanMs); err != nil {
			return nil, within(err, "itl_summary.mean_ms")
		}
		b = append(b, `,"count":`...)
		b = append(strconv.AppendInt(b, int64(s.Count), 10), '}')
	}
	if r.EngineClock != "" {
		if b, err = appendString(append(b, `,"engine_clock":`...), string(r.EngineClock)); err != nil {
			return nil, within(err, "engine_clock")
		}
	}
	if t := r.TapTimes; t != nil {
		if b, err = appendFloat(append(b, `,"tap_times":{"ttft_ms":`...), t.TTFTMs); err != nil {
			return nil, within(err, "tap_times.ttft_ms")
		}
		if b, err = appendFloats(append(b, `,"itl_ms":`...), t.ITLMs); err != nil {
			return nil, within(err, "tap_times.itl_ms")
		}
		b = append(b, '}')
	}
	return b, nil
}

// appendContent appends the content of the request: hashes and ids.
func (r *Record) appendContent(b []byte) ([]byte, error) {
	if r.BlockHashes != nil {
		b = appendUints(append(b, `,"block_hashes":`...), r.BlockHashes)
	}
	if r.MMHashes != nil {
		b = append(b, `,"mm_hashes":[`...)
		for i, s := range r.MMHashes {
			var err error
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendString(b, s); err != nil {
				return nil, within(err, "mm_hashes")
			}
		}
		b = append(b, ']')
	}
	if r.PromptTokenIDs != nil {
		b = appendUints(append(b, `,"prompt_token_ids":`...), r.PromptTokenIDs)
	}
	if r.OutputTokenIDs != nil {
		b = appendUints(append(b, `,"output_token_ids":`...), r.OutputTokenIDs)
	}
	return b, nil
}

// appendKey appends `"key":` to an object whose members start at open. The key
// needs no escapes.
func appendKey(b []byte, open int, key string) []byte {
	if len(b) > open {
		b = append(b, ',')
	}
	b = append(append(b, '"'), key...)
	return append(b, `":`...)
}

func appendUints[T uint32 | uint64](b []byte, vs []T) []byte {
	b = append(b, '[')
	for i, v := range vs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(v), 10)
	}
	return append(b, ']')
}

func appendFloats(b []byte, fs []float64) ([]byte, error) {
	b = append(b, '[')
	for i, f := range fs {
		var err error
		if i > 0 {
			b = append(b, ',')
		}
		if b, err = appendFloat(b, f); err != nil {
			return nil, err
		}
	}
	return append(b, ']'), nil
}

// appendFloat writes the shortest decimal that reads back as f, with a
// fraction or an exponent so that it is seen to be a float: 5.0, 0.0001, 1e16.
// The borders between the two forms are those of the traces in the field.
func appendFloat(b []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, invalid("", "%v is not a JSON number", f)
	}
	if abs := math.Abs(f); abs == 0 || abs >= 1e-5 && abs < 1e16 {
		start := len(b)
		b = strconv.AppendFloat(b, f, 'f', -1, 64)
		for _, ch := range b[start:] {
			if ch == '.' {
				return b, nil
			}
		}
		return append(b, ".0"...), nil
	}
	// strconv writes 1e+16 and 1e-06; the sign and the zero say nothing.
	text := strconv.AppendFloat(nil, f, 'e', -1, 64)
	for i := 0; i < len(text); i++ {
		b = append(b, text[i])
		if text[i] != 'e' {
			continue
		}
		if i++; text[i] == '-' {
			b = append(b, '-')
		}
		if text[i+1] == '0' {
			i++
		}
	}
	return b, nil
}

// appendString appends s as a JSON string, escaping only what must be.
func appendString(b []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, invalid("", "the string %q is not valid UTF-8", clip([]byte(s)))
	}
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		switch ch := s[i]; {
		case ch == '"' || ch == '\\':
			b = append(b, '\\', ch)
		case ch == '\n':
			b = append(b, `\n`...)
		case ch == '\t':
			b = append(b, `\t`...)
		case ch == '\r':
			b = append(b, `\r`...)
		case ch < ' ':
			b = append(b, `\u00`...)
			b = append(b, hex[ch>>4], hex[ch&15])
		default:
			b = append(b, ch)
		}
	}
	return append(b, '"'), nil
}

// appendRaw appends a JSON value given by the caller, checked, on one line: a
// line feed in it can only be white space, since strings escape theirs. depth
// is the one at which a reader will find the value.
func appendRaw(b, raw []byte, depth int) ([]byte, error) {
	c := &cursor{b: raw}
	if err := c.skip(depth); err != nil {
		return nil, err
	}
	if err := c.end(); err != nil {
		return nil, err
	}
	return appendLine(b, raw), nil
}

// appendLine appends JSON on one line.
func appendLine(b, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\n')
		if i < 0 {
			return append(b, raw...)
		}
		b = append(append(b, raw[:i]...), ' ')
		raw = raw[i+1:]
	}
}
