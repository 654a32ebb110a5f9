"""The gRPC service for outside controllers, with the same rules as HTTP. [I/O]"""
