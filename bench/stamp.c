/* usage: stamp FILE     writes the time of day at which it was started, in nanoseconds, to FILE */
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv) {
    struct timespec now;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &now);
    if (argc != 2) return 2;
    int length = snprintf(text, sizeof text, "%lld%09ld\n", (long long)now.tv_sec, now.tv_nsec);
    int file = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    return file < 0 || write(file, text, length) != length;
}
