package load

import "time"

// Shape is how much a workload asks for and when, as far as the workload leaves that open. A workload uses some of the
// fields and refuses the others; the zero value of a field is the workload's default.
type Shape struct {
	// Concurrency is how many requests are in flight at a time.
	Concurrency int
	// Stairs are the concurrencies of one step after another.
	Stairs []int
	// Requests is how many there are in all; of stairs, in each step; of bursts, in each burst.
	Requests int
	// Bursts is how many bursts there are, and Every the time between the beginnings of two.
	Bursts int
	Every  time.Duration
	// PromptTokens and OutputTokens are the length of each prompt and answer.
	PromptTokens, OutputTokens int
	// Text sends prompts as text, whose count of tokens is then the tokenizer's. Otherwise they are token ids.
	Text bool
	// Arrivals is a cassette whose requests come again, as long and at the times that it says; Speed divides those times.
	Arrivals string
	Speed    float64
}
