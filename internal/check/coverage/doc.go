// Package coverage measures how much of a line's wire its goldens show and the checks judge. Fields, methods and members are
// those of the line's profile, and are found in messages by the same walk that checks them, see [protocol.Value].
package coverage
