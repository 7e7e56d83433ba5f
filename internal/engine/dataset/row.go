package dataset

import (
	"encoding/json"
	"strings"
)

var (
	promptKeys     = []string{"prompt", "instruction", "question", "query", "input_text", "context"}
	inputKeys      = []string{"input", "inputs"}
	completionKeys = []string{"output", "response", "completion", "answer", "target", "label"}
	messageKeys    = []string{"messages", "conversations"}
)

// pairsOf returns the prompts of a row that have a completion.
func pairsOf(fields map[string]any) []row {
	prompt, completion := firstText(fields, promptKeys), firstText(fields, completionKeys)
	if input := firstText(fields, inputKeys); input != "" {
		prompt = strings.TrimPrefix(prompt+"\n"+input, "\n")
	}
	if prompt != "" && completion != "" {
		return []row{{prompt: prompt, completion: completion}}
	}
	for _, key := range messageKeys {
		if messages := list(fields[key]); len(messages) > 0 {
			return turns(messages)
		}
	}
	return nil
}

func firstText(fields map[string]any, keys []string) string {
	for _, key := range keys {
		if text, ok := fields[key].(string); ok && text != "" {
			return text
		}
	}
	return ""
}

// list returns the elements of a list, be it one of JSON or the text of one in a column.
func list(value any) (elements []any) {
	if text, ok := value.(string); ok {
		_ = json.Unmarshal([]byte(text), &elements) // a text that is no list has no elements
		return elements
	}
	elements, _ = value.([]any)
	return elements
}

// turns makes a pair of each answer of the assistant and the message before it.
func turns(messages []any) (pairs []row) {
	var before []string
	for _, m := range messages {
		fields, _ := m.(map[string]any)
		role, text := firstText(fields, []string{"role", "from"}), firstText(fields, []string{"content", "value"})
		if text == "" {
			continue
		}
		if n := len(before); n > 0 && (role == "assistant" || role == "gpt") {
			pairs = append(pairs, row{prompt: before[n-1], before: before[: n-1 : n-1], completion: text})
		}
		before = append(before, text)
	}
	return pairs
}
