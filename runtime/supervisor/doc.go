// Package supervisor is the runner and the way to talk to it.
//
// The runner is one small process per state directory. It starts each job as a
// direct child, holds the job's terminal or pipes, drains them into the job's
// files, reaps it, and writes its exit record. It opens no database, and its
// life does not hang on the server's: jobs go on while the server is killed,
// upgraded and started again. It ends by itself when no server is connected
// and no process of any job is left.
//
// The server's end is Fleet: it connects to every runner that lives in the
// state directory and starts one when there is none of its own build. New jobs
// always go to a runner that runs the same executable as the server; one of
// another build keeps the jobs that it has, and ends with the last of them. So
// an upgrade loses no job, and no new job is started by old code.
//
// # Protocol
//
// Frames on a unix stream socket: four bytes of length, big endian, then one
// JSON object. The client sends requests, each with a sequence number; the
// runner sends one reply to each, and events, which carry number 0. Within
// protocol version 1 messages only grow: fields and operations are added,
// never changed, and unknown fields are ignored, so that a newer server can
// always drive an older runner.
//
// # Order
//
// The exit record stands in the job's directory before the event that tells of
// the end is sent, and every byte that belongs to the job is in its file before
// either. A server that hears of the end can read all of it.
package supervisor
