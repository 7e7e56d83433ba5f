// Package frontendsuite holds the checks of the frontend suite: a frontend under test is started before the player, is asked
// over HTTP, and is judged by what it answers and by what it sends to the engine.
package frontendsuite
