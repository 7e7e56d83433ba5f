// Package serve runs a released frontend of vLLM and a player behind it as one HTTP server.
//
// The frontend is a child process; the player runs in this process. So its values can be read without asking another
// process, and there is one program less that can be lost: a fault that kills the engine ends the player's goroutines,
// not the process. Frontend and player live and die together, because a frontend takes no engine after its start.
package serve
