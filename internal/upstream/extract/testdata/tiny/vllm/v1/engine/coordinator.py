import msgspec


class Coordinator:
    def run(self, buffer, stats, scheduler_stats):
        decoded = msgspec.msgpack.decode(buffer)
        exclude, wave = decoded
        stats[0] = scheduler_stats.num_waiting_reqs
        stats[1] = scheduler_stats.num_running_reqs

    @staticmethod
    def _send_start_wave(socket, wave, exclude):
        socket.send(msgspec.msgpack.encode((wave, exclude)))
